// Reductions over rows, in orders that depend on the row's width only.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"

namespace dsv4rt::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffU;
inline constexpr int kSumChains = 16;

// Sum of the chains of a half-warp, lane i holding chain i % 16: the binary tree of sum_in_chains.
__device__ inline float fold_chains(float sum) {
#pragma unroll
  for (int width = kSumChains / 2; width > 0; width /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(kFullWarp, sum, width));
  }
  return sum;
}

// Sum over i in [0, count) of term(i): 16 chains by i % 16, each ascending, then a binary tree. This is the
// CPU backend's order, so that norms agree bit for bit. Called by whole warps; every lane gets the sum.
template <class Term>
__device__ inline float sum_in_chains(int count, const Term& term) {
  float sum = 0.0F;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x) % kSumChains; i < count; i += kSumChains) sum = __fadd_rn(sum, term(i));
  return fold_chains(sum);
}

// 1 / sqrt(sum / count + eps), every operation correctly rounded.
__device__ inline float rms_scale(float sum_of_squares, int count, float eps) {
  const float mean = __fdiv_rn(sum_of_squares, static_cast<float>(count));
  return __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(mean, eps)));
}

// Bits of a BF16 value times a norm's scale and weight, rounded to BF16.
__device__ inline std::uint32_t normalized(std::uint32_t x, float scale, std::uint32_t weight) {
  const float scaled = __fmul_rn(__uint_as_float(x << 16U), scale);
  return std::uint32_t{to_bf16(__fmul_rn(scaled, __uint_as_float(weight << 16U))).bits};
}
// The same for the two values of a word.
__device__ inline std::uint32_t normalized_pair(std::uint32_t x, float scale, std::uint32_t weight) {
  return normalized(x & 0xffffU, scale, weight & 0xffffU) | normalized(x >> 16U, scale, weight >> 16U) << 16U;
}

// Bits of the largest finite magnitude of four values, 0 without one (finite_amax of layout/amax.h).
__device__ inline std::uint32_t finite_amax_bits(const float (&v)[4]) {
  std::uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t magnitude = __float_as_uint(v[i]) & 0x7fffffffU;
    const std::uint32_t finite = magnitude < 0x7f800000U ? magnitude : 0U;
    amax = finite > amax ? finite : amax;
  }
  return amax;
}

// The largest `bits` of each group of kLanes consecutive lanes (a power of two). Called by whole warps.
template <int kLanes>
__device__ inline std::uint32_t group_max(std::uint32_t bits) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const std::uint32_t other = __shfl_xor_sync(kFullWarp, bits, offset);
    bits = other > bits ? other : bits;
  }
  return bits;
}

// The sum over the lanes up to this one. Called by whole warps.
__device__ inline std::uint32_t inclusive_warp_sum(std::uint32_t value, int lane) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::uint32_t below = __shfl_up_sync(kFullWarp, value, static_cast<unsigned>(distance));
    if (lane >= distance) value += below;
  }
  return value;
}

}  // namespace dsv4rt::cuda
