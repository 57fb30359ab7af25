// Weights of attention and quotients by their sums, the same in every kernel for Hopper; in the portable one those with
// a shift.
#pragma once

#include <cmath>

#include "backend/attend_weights.h"

namespace dsv4rt::cuda {

// 2^x, to 2^-22 relative, exact for integers; results below 2^-126 are zero.
__device__ inline float exp2_fast(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// The x of attend_weights.h; up to 60 its rounding changes a weight by 2^-18 at most.
__device__ inline float weight_exponent(float score, float window_max) {
  constexpr float kLog2E = 0x1.715476p+0f;
  return __fmul_rn(__fsub_rn(score, window_max), kLog2E);
}

// And its 64 j(x).
__device__ inline float exponent_shift(float x) {
  const float shifts = __fmaf_rn(x, 1 / kExponentShift, -kUnshiftedExponent / kExponentShift);
  return kExponentShift * fmaxf(ceilf(shifts), 0.0f);  // 0 of NaN
}

// What the weights of a token's head are relative to.
struct WeightReference {
  float window_max;  // the greatest score of window rows
  float shift;       // 64 j: 0 but where some score lies far above

  // Unrounded weights: of a head without a shift, and of any. Rounding the latter to BF16 is rounding before the shift.
  [[nodiscard]] __device__ float unshifted_weight(float score) const {
    return exp2_fast(weight_exponent(score, window_max));
  }
  [[nodiscard]] __device__ float weight(float score) const {
    const float x = weight_exponent(score, window_max);
    const float own = exponent_shift(x);
    return __fmul_rn(exp2_fast(x - own), exp2_fast(own - shift));
  }
  // Of the sink, which sums contain and which does not decide the shift.
  [[nodiscard]] __device__ float sink_weight(float sink) const { return weight(sink); }
};

// max: the greatest score of all rows. j(x) grows with x, so that it decides the shift, and whether there is one.
__device__ inline WeightReference weight_reference(float window_max, float max) {
  return {window_max, exponent_shift(weight_exponent(max, window_max))};
}
__device__ inline bool needs_shift(float window_max, float max) {
  return weight_exponent(max, window_max) > kUnshiftedExponent;
}

// Of tokens whose weights are relative to a power of two (weighs_by_power): its exponent, a whole number.
inline constexpr float kNoPower = -0x1.fffffep+127f;  // below every score
struct PowerReference {
  float power;

  [[nodiscard]] __device__ float unshifted_weight(float score) const {
    return exp2_fast(__fmaf_rn(score, 0x1.715476p+0f, -power));
  }
};
// A power close to a score.
__device__ inline PowerReference power_reference(float score) {
  return {fmaxf(ceilf(score * 0x1.715476p+0f), kNoPower)};
}
// What takes the place of `first` where some score, `greatest` among them, lies far above.
__device__ inline PowerReference second_power(PowerReference first, float greatest) {
  const PowerReference second = power_reference(greatest);
  return second.power > first.power + kUnshiftedExponent ? second : first;
}

// Weights in place of scores of two heads, of which four values at a time have two each. In a loop, of which registers
// are in local memory: it takes few instructions, and seldom runs.
template <int kCount>
__device__ inline void weigh_shifted(WeightReference first, WeightReference second, float (&s)[kCount]) {
  float values[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = s[i];
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) {
    const bool of_first = i % 4 < 2;
    const WeightReference reference{of_first ? first.window_max : second.window_max,
                                    of_first ? first.shift : second.shift};
    values[i] = reference.weight(values[i]);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[i] = values[i];
}

// 1 / x to 2^-23 relative, for x from 2^-126 up to 2^126, or NaN; beyond it is zero.
__device__ inline float reciprocal(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}

// Sum of a thread's weights of a step of 32 rows, one of the two in a tile, of one of its two heads; those of the
// head's four lanes head_sum() adds up. All kernels of tiles sum in this order.
__device__ inline float step_sum(const float (&weights)[32], int step, int half) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 4 * step; i < 4 * step + 4; ++i) sum += weights[4 * i + 2 * half] + weights[4 * i + 2 * half + 1];
  return sum;
}
__device__ inline float head_sum(float sum) {
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  return sum;
}

}  // namespace dsv4rt::cuda
