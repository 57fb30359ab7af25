// exp of FP32 with the bits of the CPU backend.
#pragma once

namespace dsv4rt::cuda {

// exp of an argument up to 0 (or NaN): the steps of cpu/exp_lanes.h, none fused: exp(x) = 2^n * e^r, Cody-Waite
// reduction, Taylor polynomial of degree 7. At most 2 ulp; below -87 it is 0, NaN stays NaN. A compressed row then
// has the same bytes whichever backend pooled it. The result is at least 2^-126, so that 2^n is one exact factor
// where the CPU, which serves positive arguments too, takes two.
__device__ inline float exp_nonpositive(float x) {
  constexpr float kLowest = -87.0F;
  constexpr float kLog2E = 0x1.715476p+0F;
  constexpr float kLn2High = 0x1.62e4p-1F;  // 15 bits: the product with n is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20F;
  constexpr float kRoundMagic = 0x1.8p23F;  // adding it rounds to an integer in the low mantissa bits

  const float shifted = __fadd_rn(__fmul_rn(x, kLog2E), kRoundMagic);
  const float n = __fsub_rn(shifted, kRoundMagic);
  float r = __fmaf_rn(n, -kLn2High, x);  // one rounding as there: the product is exact
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
