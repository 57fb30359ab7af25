// Exponentials and quotients of attention's weights, the same in every kernel for Hopper.
#pragma once

namespace dsv4rt::cuda {

// exp(x) for x <= 0, to 2^-21 relative for x > -16; results below 2^-126 are zero.
__device__ inline float exp_fast(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(__fmul_rn(x, kLog2E)));
  return power;
}

// 1 / x to 2^-23 relative, for x >= 1 or NaN.
__device__ inline float reciprocal(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}

}  // namespace dsv4rt::cuda
