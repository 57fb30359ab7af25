// Indexer queries: RoPE, Hadamard, and the rounding that the stored keys went through, for a warp and heads of one
// token, four at a time.
//
// Eight lanes share a head: lane l of them has the values 8 l .. 8 l + 7 of either half of 64, so that all lanes have
// as many values of the half that is rotated.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/cuda/kernels/common/row_encode.cuh"
#include "backend/ops.h"
#include "layout/codec_e2m1.h"
#include "layout/codec_e4m3.h"
#include "layout/codec_e8m0.h"
#include "layout/codec_nvfp4.h"
#include "layout/index_key.h"

namespace dsv4rt::cuda {

inline constexpr int kWarpIndexHeads = 4;  // at a time
inline constexpr int kIndexHeadLanes = 32 / kWarpIndexHeads;
inline constexpr int kLaneUnits = 2;  // one of each half
inline constexpr int kUnitPairs = 4;  // pairs of values in 16 bytes
inline constexpr int kLaneValues = kLaneUnits * kUnitPairs * 2;
inline constexpr int kHalfHead = kIndexHeadDim / kLaneUnits;
static_assert(kLaneValues * kIndexHeadLanes == kIndexHeadDim && kHalfHead == kRopeDim);
static_assert(kNvfp4GroupValues == 16 && kMxfp4GroupValues == 32, "two lanes' and four lanes' of a half");

// A lane's values as pairs of BF16, those of the first half in front.
using IndexWords = std::uint32_t[kLaneUnits * kUnitPairs];
using IndexValues = float[kLaneValues];

__device__ inline void unpack_values(const IndexWords& words, IndexValues& v) {
#pragma unroll
  for (int i = 0; i < kLaneValues; i += 2) {
    v[i] = low_value(words[i / 2]);
    v[i + 1] = high_value(words[i / 2]);
  }
}
__device__ inline void round_values(const IndexValues& v, IndexWords& words) {
#pragma unroll
  for (int i = 0; i < kLaneValues; i += 2) words[i / 2] = round_pair(v[i], v[i + 1]);
}

// hadamard_bf16 of common/hadamard.cuh. `part`: of the head's eight lanes.
__device__ inline void hadamard_of_lane(IndexWords& words, int part) {
  constexpr float kScale = 0x1.6a09e6p-4F;  // 128^-0.5
  IndexValues v;
  unpack_values(words, v);
  const auto add_in_lane = [&](int stride) {
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) {
      if ((i & stride) != 0) continue;
      const float a = v[i];
      const float b = v[i + stride];
      v[i] = __fadd_rn(a, b);
      v[i + stride] = __fsub_rn(a, b);
    }
  };
#pragma unroll
  for (int stride = 1; stride < 2 * kUnitPairs; stride *= 2) add_in_lane(stride);
#pragma unroll
  for (int distance = 1; distance < kIndexHeadLanes; distance *= 2) {
    const float sign = (part & distance) != 0 ? -1.0F : 1.0F;
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) {
      // other + v or other - v: the product is exact.
      v[i] = __fmaf_rn(v[i], sign, __shfl_xor_sync(kFullWarp, v[i], distance));
    }
  }
  add_in_lane(2 * kUnitPairs);
#pragma unroll
  for (float& value : v) value = __fmul_rn(value, kScale);
  round_values(v, words);
}

// --- MXFP4: in pairs of BF16 ---------------------------------------------------------------------------------------
// Products with powers of two are exact but where they underflow, far below what rounds to zero, or overflow, as FP32
// products do that are rounded to BF16.

// Magnitudes of the greatest of a unit's values with even and odd numbers, in halves of a word; NaN counts as the
// greatest.
__device__ inline std::uint32_t greatest_magnitudes(const std::uint32_t* unit) {
  std::uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kUnitPairs; ++i) most = __vmaxu2(most, unit[i] & 0x7fff7fffU);
  return most;
}
// round_e2m1 for pairs with magnitudes up to 6, what a group's scale makes of finite values: 64 times the power of two
// at or below a value, added and subtracted, leaves it two significant bits, ties to even.
__device__ inline std::uint32_t round_e2m1_pair(std::uint32_t pair) {
  constexpr std::uint32_t kOnes = 0x3f803f80U;
  constexpr std::uint32_t kSixExponents = 0x03000300U;
  const std::uint32_t grid = __vmaxu2(pair & 0x7f807f80U, kOnes) + kSixExponents;
  const std::uint32_t rounded = subtract_pairs(add_pairs(pair & 0x7fff7fffU, grid), grid);
  return rounded | (pair & 0x80008000U);
}
// What a reader of a key with these values, all finite, would see. Two groups a lane, shared by four.
__device__ inline void round_through_mxfp4(IndexWords& words, const std::uint32_t (&most)[kLaneUnits]) {
#pragma unroll
  for (int unit = 0; unit < kLaneUnits; ++unit) {
    const std::uint32_t bits = max(most[unit] << 16, most[unit] & 0xffff0000U);
    const std::uint32_t code = e8m0_scale_for_e2m1(__uint_as_float(group_max<4>(bits)));  // 1 .. 253
    const std::uint32_t scale = code * 0x00800080U;
    const std::uint32_t reciprocal = (254U - code) * 0x00800080U;
#pragma unroll
    for (int i = unit * kUnitPairs; i < (unit + 1) * kUnitPairs; ++i) {
      words[i] = multiply_pairs(round_e2m1_pair(multiply_pairs(words[i], reciprocal)), scale);
    }
  }
}

// --- any values, any format ---------------------------------------------------------------------------------------

// The like of finite_amax_bits of common/reduce.cuh for eight values: infinities and NaN do not take part.
__device__ inline std::uint32_t finite_amax_of_unit(const float* v) {
  std::uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < 2 * kUnitPairs; ++i) {
    const std::uint32_t magnitude = __float_as_uint(v[i]) & 0x7fffffffU;
    amax = max(amax, magnitude < 0x7f800000U ? magnitude : 0U);
  }
  return amax;
}

// A unit of a group with this E8M0 scale.
template <class Round>
__device__ inline void round_scaled(float* v, std::uint8_t code, const Round& round) {
  const float scale = decode_e8m0(code);
  const float reciprocal = e8m0_reciprocal(code);
#pragma unroll
  for (int i = 0; i < 2 * kUnitPairs; ++i) v[i] = __fmul_rn(round(__fmul_rn(v[i], reciprocal)), scale);
}

__device__ inline void round_through_key(IndexKeyFormat format, IndexWords& words) {
  if (format == IndexKeyFormat::kMxfp4) {
    const std::uint32_t most[kLaneUnits] = {greatest_magnitudes(words), greatest_magnitudes(words + kUnitPairs)};
    const std::uint32_t both = __vmaxu2(most[0], most[1]);
    if (__all_sync(kFullWarp, max(both & 0xffffU, both >> 16) < 0x7f80U)) {
      round_through_mxfp4(words, most);
      return;
    }
  }
  IndexValues v;
  unpack_values(words, v);
  if (format == IndexKeyFormat::kBf16) {
    round_values(v, words);  // NaN as all others have it
    return;
  }
  std::uint32_t amax[kLaneUnits] = {finite_amax_of_unit(v), finite_amax_of_unit(v + 2 * kUnitPairs)};
  if (format == IndexKeyFormat::kFp8) {
    amax[0] = amax[1] = group_max<kIndexHeadLanes>(max(amax[0], amax[1]));
  }
#pragma unroll
  for (int unit = 0; unit < kLaneUnits; ++unit) {
    float* own = v + unit * 2 * kUnitPairs;
    if (format == IndexKeyFormat::kMxfp4) {
      round_scaled(own, e8m0_scale_for_e2m1(__uint_as_float(group_max<4>(amax[unit]))),
                   [](float value) { return round_e2m1(value); });
    } else if (format == IndexKeyFormat::kNvfp4) {
      const float scale = decode_e4m3(nvfp4_group_scale(__uint_as_float(group_max<2>(amax[unit]))));
#pragma unroll
      for (int i = 0; i < 2 * kUnitPairs; ++i) {
        own[i] = __fmul_rn(scale > 0.0F ? round_e2m1(__fdiv_rn(own[i], scale)) : 0.0F, scale);
      }
    } else {
      round_scaled(own, e8m0_scale_for_e4m3(__uint_as_float(amax[unit])),
                   [](float value) { return round_e4m3(value); });
    }
  }
  round_values(v, words);
}

// Heads first_head .. first_head + heads - 1 of `token`, as far as there are so many. Called by a whole warp. Padding
// gets zeros.
__device__ inline void index_query_heads(const IndexQueryParams& p, std::int64_t token, int first_head, int heads) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = lane % kIndexHeadLanes;
  int head = first_head + lane / kIndexHeadLanes;
  const int end = min(first_head + heads, p.heads);
  auto* at = reinterpret_cast<uint4*>(p.q + (token * p.heads + head) * kIndexHeadDim) + part;
  constexpr int kHalfUnits = kHalfHead / (2 * kUnitPairs);
  constexpr int kTurnUnits = kWarpIndexHeads * kIndexHeadDim / (2 * kUnitPairs);
  const bool real = p.step.token_sequence[token] >= 0;
  const bool rotates = p.rope.inverse_frequency != nullptr;
  Rotation rotation[kUnitPairs];
  if (rotates) {
    const Rotation own = rotation_of(p.rope, p.step.token_position[token], lane);
#pragma unroll
    for (int i = 0; i < kUnitPairs; ++i) {
      rotation[i] = {.cosine = __shfl_sync(kFullWarp, own.cosine, kUnitPairs * part + i),
                     .sine = __shfl_sync(kFullWarp, own.sine, kUnitPairs * part + i)};
    }
  }
  wait_for_predecessors();

  const auto load = [&](const uint4* from, int of_head, uint4(&units)[kLaneUnits]) {
    units[0] = units[1] = uint4{};
    if (!real || of_head >= end) return;
    units[0] = from[0];
    units[1] = from[kHalfUnits];
  };
  uint4 units[kLaneUnits];
  load(at, head, units);
#pragma unroll 1
  for (int first = first_head; first < end; first += kWarpIndexHeads) {
    uint4 next[kLaneUnits];
    load(at + kTurnUnits, head + kWarpIndexHeads, next);
    IndexWords words = {units[0].x, units[0].y, units[0].z, units[0].w, units[1].x, units[1].y, units[1].z, units[1].w};
    if (rotates) {
#pragma unroll
      for (int i = 0; i < kUnitPairs; ++i) {
        std::uint32_t& word = words[kUnitPairs + i];
        float even = low_value(word);
        float odd = high_value(word);
        rotate_pair(rotation[i], even, odd);
        word = round_pair(even, odd);
      }
    }
    if (p.hadamard) hadamard_of_lane(words, part);
    round_through_key(p.key_format, words);
    if (head < end) {
      at[0] = make_uint4(words[0], words[1], words[2], words[3]);
      at[kHalfUnits] = make_uint4(words[4], words[5], words[6], words[7]);
    }
    units[0] = next[0];
    units[1] = next[1];
    at += kTurnUnits;
    head += kWarpIndexHeads;
  }
}

}  // namespace dsv4rt::cuda
