#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/encode_input.h"
#include "layout/codec_e8m0.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kBlockInputs = 128;
constexpr int kLanes = 16;  // of a block, 8 values each
constexpr int kThreads = 256;
constexpr int kBlocksPerGroup = kThreads / kLanes;

__device__ inline float widen_bf16(std::uint32_t pair, int i) {
  return __uint_as_float(i == 0 ? pair << 16 : pair & 0xffff0000U);
}

__global__ __launch_bounds__(kThreads) void encode_input_kernel(const EncodeInputParams p) {
  allow_dependents();
  wait_for_predecessors();
  const std::int64_t item = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes;
  if (item >= std::int64_t{p.tokens} * p.blocks) return;  // whole half-warps
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t token = item / p.blocks;
  const std::int64_t block = item % p.blocks;
  const std::int64_t first = block * kBlockInputs + lane * 8;
  const uint4 packed = *reinterpret_cast<const uint4*>(p.x + token * p.x_stride + first);
  const std::uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
  // Magnitudes order like their bits; NaN and infinities do not count (finite_amax).
  std::uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t magnitude = __float_as_uint(widen_bf16(pairs[i / 2], i % 2)) & 0x7fffffffU;
    if (magnitude < 0x7f800000U && magnitude > amax) amax = magnitude;
  }
  const unsigned members = (threadIdx.x & 16U) != 0 ? 0xffff0000U : 0x0000ffffU;
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) amax = max(amax, __shfl_xor_sync(members, amax, offset));
  const std::uint8_t scale_code = e8m0_scale_for_e4m3(__uint_as_float(amax));
  const float reciprocal = __uint_as_float((254U - scale_code) << 23);  // exact: codes lie in 105 .. 247
  std::uint32_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float low = widen_bf16(pairs[i], 0) * reciprocal;
    const float high = widen_bf16(pairs[i], 1) * reciprocal;
    std::uint16_t pair = 0;  // the codes of encode_e4m3, except that NaN has no sign
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    codes[i] = pair;
  }
  *reinterpret_cast<uint2*>(p.codes + (token * p.blocks + block) * kBlockInputs + lane * 8) =
      make_uint2(codes[0] | codes[1] << 16, codes[2] | codes[3] << 16);
  if (lane == 0) p.scales[block * p.scale_stride + token] = decode_e8m0(scale_code);
}

}  // namespace

Status encode_input(const EncodeInputParams& p, cudaStream_t stream) {
  const std::int64_t items = std::int64_t{p.tokens} * p.blocks;
  const auto grid = static_cast<unsigned>((items + kBlocksPerGroup - 1) / kBlocksPerGroup);
  return launch_pdl(encode_input_kernel, {.grid = dim3(grid), .threads = kThreads}, stream, p);
}

}  // namespace dsv4rt::cuda
