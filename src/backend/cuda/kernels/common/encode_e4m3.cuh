// Rounding of BF16 values to E4M3 times a power of two that a block of them shares, pair by pair: what
// round_activation_fp8 does to a value. Who shares a block, and how its greatest value is found, is the caller's.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "layout/codec_e8m0.h"

namespace dsv4rt::cuda {

// All ones in the halves of a pair of BF16 values that are NaN or infinite.
__device__ __forceinline__ std::uint32_t non_finite_halves(std::uint32_t pair) {
  std::uint32_t halves;  // the sum's sign is set where the exponent is all ones; its copies fill the half
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(halves) : "r"((pair & 0x7fff7fffU) + 0x00800080U));
  return halves;
}
// Magnitudes in the halves, 0 for NaN and infinities (finite_amax). They order like their bits.
__device__ __forceinline__ std::uint32_t finite_magnitudes(std::uint32_t pair) {
  return pair & 0x7fff7fffU & ~non_finite_halves(pair);
}

// E8M0 code of a block's scale; `most`: the greatest magnitudes of its pairs' halves.
__device__ __forceinline__ std::uint8_t scale_code_of(std::uint32_t most) {
  return e8m0_scale_for_e4m3(__uint_as_float(max(most << 16, most & 0xffff0000U)));
}
__device__ __forceinline__ float scale_of_code(std::uint8_t scale_code) {
  return __uint_as_float(static_cast<std::uint32_t>(scale_code) << 23);
}
// Exact: codes of scale_code_of() lie in 105 .. 247.
__device__ __forceinline__ float reciprocal_scale(std::uint8_t scale_code) {
  return __uint_as_float((254U - scale_code) << 23);
}

// value / scale, and NaN for an infinity (round_activation_fp8): the factor is the reciprocal for finite values.
__device__ __forceinline__ float scaled(float value, float reciprocal) {
  return value * __fmaf_rn(value, 0.0F, reciprocal);
}

// E4M3 codes of two values: nearest, ties to even, saturating; NaN loses its sign.
__device__ __forceinline__ std::uint16_t e4m3_codes(float low, float high) {
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
// Of a pair of BF16 values over their scale; infinities become NaN.
__device__ __forceinline__ std::uint16_t encode_pair(std::uint32_t pair, float reciprocal) {
  return e4m3_codes(scaled(low_value(pair), reciprocal), scaled(high_value(pair), reciprocal));
}

// The same in fewer instructions for many pairs of finite values and NaN.

// Of each half the greater magnitude, with any sign; NaN where either is.
__device__ __forceinline__ std::uint32_t greater_magnitudes(std::uint32_t a, std::uint32_t b) {
  std::uint32_t greater;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(greater) : "r"(a), "r"(b));
  return greater;
}
// The factor of encode_scaled_pair().
__device__ __forceinline__ std::uint32_t reciprocal_pair(std::uint8_t scale_code) {
  return (254U - scale_code) * 0x00800080U;
}
// Products are exact, but for magnitudes so small that their code is 0 all the same.
__device__ __forceinline__ std::uint16_t encode_scaled_pair(std::uint32_t pair, std::uint32_t factor) {
  const std::uint32_t product = multiply_pairs(pair, factor);
  const float high = high_value(product);
  return e4m3_codes(low_value(product), high);
}

}  // namespace dsv4rt::cuda
