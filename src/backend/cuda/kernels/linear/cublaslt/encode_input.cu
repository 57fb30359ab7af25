#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/cublaslt/encode_input.h"
#include "backend/cuda/kernels/linear/shared/round_values.cuh"
#include "layout/codec_e8m0.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kBlockInputs = 128;
__global__ __launch_bounds__(kRoundingThreads) void encode_input_kernel(const EncodeInputParams p) {
  allow_dependents();
  wait_for_predecessors();
  const auto [item, lane, members] = RoundingPlace{};
  if (item >= std::int64_t{p.tokens} * p.blocks) return;  // whole half-warps
  const std::int64_t token = item / p.blocks;
  const std::int64_t block = item % p.blocks;
  const std::int64_t first = block * kBlockInputs + lane * 8;
  const uint4 packed = *reinterpret_cast<const uint4*>(p.x + token * p.x_stride + first);
  const std::uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
  const std::uint8_t scale_code = block_scale_code(pairs, members);
  const float reciprocal = reciprocal_scale(scale_code);
  std::uint32_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) codes[i] = encode_pair(pairs[i], reciprocal);
  *reinterpret_cast<uint2*>(p.codes + (token * p.blocks + block) * kBlockInputs + lane * 8) =
      make_uint2(codes[0] | codes[1] << 16, codes[2] | codes[3] << 16);
  if (lane == 0) p.scales[block * p.scale_stride + token] = decode_e8m0(scale_code);
}

}  // namespace

Status encode_input(const EncodeInputParams& p, cudaStream_t stream) {
  const std::int64_t items = std::int64_t{p.tokens} * p.blocks;
  const auto grid = static_cast<unsigned>((items + kRoundingBlocks - 1) / kRoundingBlocks);
  return launch_pdl(encode_input_kernel, {.grid = dim3(grid), .threads = kRoundingThreads}, stream, p);
}

}  // namespace dsv4rt::cuda
