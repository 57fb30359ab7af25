// Indexer queries: RoPE, Hadamard, and the rounding that the stored keys went through, for a warp and four
// heads of one token.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/ops.h"
#include "layout/codec_e2m1.h"
#include "layout/codec_e4m3.h"
#include "layout/codec_e8m0.h"
#include "layout/codec_nvfp4.h"
#include "layout/index_key.h"

namespace dsv4rt::cuda {

inline constexpr int kWarpIndexHeads = 4;
inline constexpr int kIndexHeadLanes = 32 / kWarpIndexHeads;
inline constexpr int kLaneValues = kIndexHeadDim / kIndexHeadLanes;
static_assert(kLaneValues == 16 && kNvfp4GroupValues == kLaneValues && kMxfp4GroupValues == 2 * kLaneValues);

// hadamard_bf16 of common/hadamard.cuh with a vector on eight lanes, sixteen consecutive values each.
__device__ inline void hadamard_of_eighth(float (&v)[kLaneValues], int part) {
  constexpr float kScale = 0x1.6a09e6p-4F;  // 128^-0.5
#pragma unroll
  for (int stride = 1; stride < kLaneValues; stride *= 2) {
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) {
      if ((i & stride) != 0) continue;
      const float a = v[i];
      const float b = v[i + stride];
      v[i] = __fadd_rn(a, b);
      v[i + stride] = __fsub_rn(a, b);
    }
  }
#pragma unroll
  for (int distance = 1; distance < kIndexHeadLanes; distance *= 2) {
    const float sign = (part & distance) != 0 ? -1.0F : 1.0F;
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) {
      // other + v or other - v: the product is exact.
      v[i] = __fmaf_rn(v[i], sign, __shfl_xor_sync(kFullWarp, v[i], distance));
    }
  }
#pragma unroll
  for (int i = 0; i < kLaneValues; i += 2) {
    const std::uint32_t word = round_pair(__fmul_rn(v[i], kScale), __fmul_rn(v[i + 1], kScale));
    v[i] = low_value(word);
    v[i + 1] = high_value(word);
  }
}

// The largest magnitude of a lane's values; NaN if there is one.
__device__ inline float amax_of_lane(const float (&v)[kLaneValues]) {
  float amax = 0.0F;
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) asm("max.NaN.f32 %0, %0, %1;" : "+f"(amax) : "f"(fabsf(v[i])));
  return amax;
}
// The like of finite_amax_bits of common/reduce.cuh: infinities and NaN do not take part.
__device__ inline float finite_amax_of_lane(const float (&v)[kLaneValues]) {
  std::uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) {
    const std::uint32_t magnitude = __float_as_uint(v[i]) & 0x7fffffffU;
    amax = max(amax, magnitude < 0x7f800000U ? magnitude : 0U);
  }
  return __uint_as_float(amax);
}

// round_e2m1 for magnitudes up to 6: what a group's scale makes of finite values.
__device__ inline float round_e2m1_in_range(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  const float grid = __uint_as_float(max((bits & 0x7f800000U) + (22U << 23U), 0x3f800000U + (22U << 23U)));
  const float rounded = __fsub_rn(__fadd_rn(fabsf(value), grid), grid);
  return __uint_as_float(__float_as_uint(rounded) | (bits & 0x80000000U));
}

// What a reader of a key with these values would see, not yet rounded to BF16. `amax` is the lane's.
template <class Round>
__device__ inline void round_mxfp4_key(float (&v)[kLaneValues], float amax, const Round& round) {
  const std::uint8_t code = e8m0_scale_for_e2m1(__uint_as_float(group_max<2>(__float_as_uint(amax))));
  const float scale = decode_e8m0(code);
  const float reciprocal = __uint_as_float((254U - code) << 23U);  // codes from 1 to 253: exact
#pragma unroll
  for (int i = 0; i < kLaneValues; ++i) v[i] = __fmul_rn(round(__fmul_rn(v[i], reciprocal)), scale);
}

__device__ inline void round_through_key(IndexKeyFormat format, float (&v)[kLaneValues]) {
  if (format == IndexKeyFormat::kBf16) return;
  if (format == IndexKeyFormat::kMxfp4) {
    const float amax = amax_of_lane(v);
    if (__all_sync(kFullWarp, amax < __int_as_float(0x7f800000))) {
      round_mxfp4_key(v, amax, [](float value) { return round_e2m1_in_range(value); });
    } else {
      round_mxfp4_key(v, finite_amax_of_lane(v), [](float value) { return round_e2m1(value); });
    }
    return;
  }
  const float lane_amax = finite_amax_of_lane(v);
  if (format == IndexKeyFormat::kNvfp4) {
    const float scale = decode_e4m3(nvfp4_group_scale(lane_amax));
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) {
      v[i] = __fmul_rn(scale > 0.0F ? round_e2m1(__fdiv_rn(v[i], scale)) : 0.0F, scale);
    }
  } else {
    const std::uint32_t amax = group_max<kIndexHeadLanes>(__float_as_uint(lane_amax));
    const std::uint8_t code = e8m0_scale_for_e4m3(__uint_as_float(amax));
    const float scale = decode_e8m0(code);
    const float reciprocal = __uint_as_float((254U - code) << 23U);
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) v[i] = __fmul_rn(round_e4m3(__fmul_rn(v[i], reciprocal)), scale);
  }
}

// Heads first_head .. first_head + 3 of `token`, as far as there are so many. Called by a whole warp. Padding
// gets zeros.
__device__ inline void index_query_heads(const IndexQueryParams& p, std::int64_t token, int first_head) {
  constexpr int kFirstRotatedPart = (kIndexHeadDim - kRopeDim) / kLaneValues;
  constexpr int kLanePairs = kLaneValues / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = lane % kIndexHeadLanes;
  const int head = first_head + lane / kIndexHeadLanes;
  const bool present = head < p.heads;
  auto* at = reinterpret_cast<uint4*>(p.q + (token * p.heads + head) * kIndexHeadDim + part * kLaneValues);
  const bool real = p.step.token_sequence[token] >= 0;
  Rotation own;
  const bool rotates = p.rope.inverse_frequency != nullptr;
  if (rotates) own = rotation_of(p.rope, p.step.token_position[token], lane);
  wait_for_predecessors();

  uint4 units[2] = {};
  if (real && present) {
    units[0] = at[0];
    units[1] = at[1];
  }
  const std::uint32_t words[kLanePairs] = {units[0].x, units[0].y, units[0].z, units[0].w,
                                           units[1].x, units[1].y, units[1].z, units[1].w};
  float v[kLaneValues];
#pragma unroll
  for (int i = 0; i < kLanePairs; ++i) {
    v[2 * i] = low_value(words[i]);
    v[2 * i + 1] = high_value(words[i]);
  }
  if (rotates) {
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) {
      const Rotation rotation{.cosine = __shfl_sync(kFullWarp, own.cosine, (kLanePairs * part + i) % 32),
                              .sine = __shfl_sync(kFullWarp, own.sine, (kLanePairs * part + i) % 32)};
      if (part >= kFirstRotatedPart) rotate_pair(rotation, v[2 * i], v[2 * i + 1]);
    }
    static_assert(kLanePairs * kFirstRotatedPart % 32 == 0);
  }
  if (p.hadamard) hadamard_of_eighth(v, part);
  round_through_key(p.key_format, v);
  if (!present) return;
  std::uint32_t out[kLanePairs];
#pragma unroll
  for (int i = 0; i < kLanePairs; ++i) out[i] = round_pair(v[2 * i], v[2 * i + 1]);
  at[0] = make_uint4(out[0], out[1], out[2], out[3]);
  at[1] = make_uint4(out[4], out[5], out[6], out[7]);
}

}  // namespace dsv4rt::cuda
