#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/shared/encode_input.h"
#include "backend/cuda/kernels/linear/shared/round_values.cuh"

namespace dsv4rt::cuda {
namespace {

// kItems: most items that a thread has. `blocks` divides by row_blocks, the blocks of a row.
template <int kItems>
__global__ __launch_bounds__(kRoundingThreads) void encode_input_kernel(const EncodeInputParams p,
                                                                        std::uint32_t row_blocks,
                                                                        const FixedDivisor blocks) {
  allow_dependents();
  const auto [first, lane, members] = RoundingPlace{};
  const auto items = static_cast<std::uint32_t>(p.tokens * row_blocks);
  const std::uint32_t step = gridDim.x * kRoundingBlocks;
  std::uint32_t token[kItems];
  std::uint32_t block[kItems];
  const bf16* from[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::uint32_t item = first + i * step;
    if (item >= items) break;
    token[i] = blocks.quotient(item);
    block[i] = item - token[i] * row_blocks;
    from[i] = p.x + token[i] * p.x_stride + block[i] * kEncodedBlockValues + lane * 8;
    have_ready(from[i]);
  }
  wait_for_predecessors();
  uint4 values[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (first + i * step >= items) break;
    values[i] = *reinterpret_cast<const uint4*>(from[i]);
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::uint32_t item = first + i * step;
    if (item >= items) break;  // whole half-warps
    const EncodedInputs encoded = encode_block(values[i], members);
    *reinterpret_cast<uint2*>(p.to.codes + std::int64_t{item} * kEncodedBlockValues + lane * 8) = encoded.codes;
    if (lane == 0) p.to.scales[std::int64_t{block[i]} * p.to.scale_stride + token[i]] = encoded.scale();
  }
}

}  // namespace

Status encode_input(const EncodeInputParams& p, int most_blocks, cudaStream_t stream) {
  const auto row_blocks = static_cast<std::uint32_t>(p.to.width / kEncodedBlockValues);
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t items, rounding_items(p.tokens, static_cast<std::int32_t>(row_blocks)));
  const std::int64_t grid = rounding_grid(items, most_blocks);
  const auto kernel =
      grid * kRoundingBlocks >= items ? encode_input_kernel<1> : encode_input_kernel<kMostRoundingItems>;
  return launch_pdl(kernel, {.grid = dim3(static_cast<unsigned>(grid)), .threads = kRoundingThreads}, stream, p,
                    row_blocks, FixedDivisor(row_blocks));
}

}  // namespace dsv4rt::cuda
