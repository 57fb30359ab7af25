#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/shared/encode_input.h"
#include "backend/cuda/kernels/linear/shared/round_values.cuh"

namespace dsv4rt::cuda {
namespace {

constexpr int kBlockInputs = 128;

// kItems: most items that a thread has.
template <int kItems>
__global__ __launch_bounds__(kRoundingThreads) void encode_input_kernel(const EncodeInputParams p) {
  allow_dependents();
  const auto [first, lane, members] = RoundingPlace{};
  const std::int64_t items = std::int64_t{p.tokens} * p.blocks;
  const std::int64_t step = std::int64_t{gridDim.x} * kRoundingBlocks;
  const bf16* from[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::int64_t item = first + i * step;
    if (item >= items) break;
    from[i] = p.x + item / p.blocks * p.x_stride + item % p.blocks * kBlockInputs + lane * 8;
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
    const std::int64_t item = first + i * step;
    if (item >= items) break;  // whole half-warps
    const EncodedInputs encoded = encode_block(values[i], members);
    *reinterpret_cast<uint2*>(p.codes + item * kBlockInputs + lane * 8) = encoded.codes;
    if (lane == 0) p.scales[item % p.blocks * p.scale_stride + item / p.blocks] = encoded.scale();
  }
}

}  // namespace

Status encode_input(const EncodeInputParams& p, int most_blocks, cudaStream_t stream) {
  const std::int64_t items = std::int64_t{p.tokens} * p.blocks;
  const std::int64_t grid = rounding_grid(items, most_blocks);
  const auto kernel =
      grid * kRoundingBlocks >= items ? encode_input_kernel<1> : encode_input_kernel<kMostRoundingItems>;
  return launch_pdl(kernel, {.grid = dim3(static_cast<unsigned>(grid)), .threads = kRoundingThreads}, stream, p);
}

}  // namespace dsv4rt::cuda
