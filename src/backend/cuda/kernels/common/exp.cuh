// exp of FP32 with the bits of the CPU backend.
#pragma once

namespace dsv4rt::cuda {

// The steps of cpu/exp_lanes.h, none fused: exp(x) = 2^n * e^r, Cody-Waite reduction, Taylor polynomial
// of degree 7. At most 2 ulp; below -87 it is 0, above 88.7 infinity, NaN stays NaN. A compressed row
// then has the same bytes whichever backend pooled it.
__device__ inline float exp_unfused(float x) {
  constexpr float kLowest = -87.0F;
  constexpr float kHighest = 88.7F;
  constexpr float kLog2E = 0x1.715476p+0F;
  constexpr float kLn2High = 0x1.62e4p-1F;  // 15 bits: the product with n is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20F;
  constexpr float kRoundMagic = 0x1.8p23F;  // adding it rounds to an integer in the low mantissa bits

  const float shifted = __fadd_rn(__fmul_rn(x, kLog2E), kRoundMagic);
  const float n = __fsub_rn(shifted, kRoundMagic);
  // Unsigned where arguments out of range would overflow; their results are replaced below.
  const unsigned n_bits = __float_as_uint(shifted) - __float_as_uint(kRoundMagic);
  float r = __fsub_rn(x, __fmul_rn(n, kLn2High));
  r = __fsub_rn(r, __fmul_rn(n, kLn2Low));
  const auto step = [r](float p, float coefficient) { return __fadd_rn(__fmul_rn(p, r), coefficient); };
  float p = 0x1.a01a02p-13F;     // 1/5040
  p = step(p, 0x1.6c16c2p-10F);  // 1/720
  p = step(p, 0x1.111112p-7F);   // 1/120
  p = step(p, 0x1.555556p-5F);   // 1/24
  p = step(p, 0x1.555556p-3F);   // 1/6
  p = step(p, 0.5F);
  p = step(p, 1.0F);
  p = step(p, 1.0F);
  // Two factors, because 2^128 is not a float while exp(88.7) is.
  const auto half = static_cast<unsigned>(static_cast<int>(n_bits) >> 1);
  p = __fmul_rn(p, __uint_as_float((half + 127U) << 23U));
  p = __fmul_rn(p, __uint_as_float((n_bits - half + 127U) << 23U));
  if (x < kLowest) return 0.0F;
  return x > kHighest ? __int_as_float(0x7f800000) : p;
}

// exp_unfused of arguments up to 0 (or NaN), the same bits in fewer steps: the result is at least 2^-126, so
// the power of two is one factor.
__device__ inline float exp_unfused_nonpositive(float x) {
  constexpr float kLowest = -87.0F;
  constexpr float kLog2E = 0x1.715476p+0F;
  constexpr float kLn2High = 0x1.62e4p-1F;
  constexpr float kLn2Low = 0x1.7f7d1cp-20F;
  constexpr float kRoundMagic = 0x1.8p23F;

  const float shifted = __fadd_rn(__fmul_rn(x, kLog2E), kRoundMagic);
  const float n = __fsub_rn(shifted, kRoundMagic);
  float r = __fsub_rn(x, __fmul_rn(n, kLn2High));
  r = __fsub_rn(r, __fmul_rn(n, kLn2Low));
  const auto step = [r](float p, float coefficient) { return __fadd_rn(__fmul_rn(p, r), coefficient); };
  float p = 0x1.a01a02p-13F;
  p = step(p, 0x1.6c16c2p-10F);
  p = step(p, 0x1.111112p-7F);
  p = step(p, 0x1.555556p-5F);
  p = step(p, 0x1.555556p-3F);
  p = step(p, 0.5F);
  p = step(p, 1.0F);
  p = step(p, 1.0F);
  // The bits of kRoundMagic vanish in the shift: what remains is n in the exponent's place.
  const float power = __uint_as_float((__float_as_uint(shifted) << 23U) + 0x3f800000U);
  // A choice that the compiler does not turn into a branch: independent values then overlap.
  float result;
  asm("{\n  .reg .pred low;\n  setp.lt.f32 low, %1, %2;\n  selp.f32 %0, 0f00000000, %3, low;\n}"
      : "=f"(result)
      : "f"(x), "f"(kLowest), "f"(__fmul_rn(p, power)));
  return result;
}

}  // namespace dsv4rt::cuda
