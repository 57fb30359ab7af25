// Pairs of BF16 values in 32-bit words: the value with the even index lies in the low half.
#pragma once

#include <cstdint>

namespace dsv4rt::cuda {

__device__ inline float low_value(std::uint32_t word) {
  return __uint_as_float(word << 16U);
}
__device__ inline float high_value(std::uint32_t word) {
  return __uint_as_float(word & 0xffff0000U);
}

// Both products rounded to BF16 once, as a product in FP32 is that is rounded afterwards: it is exact there.
__device__ inline std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Both sums, and both differences, rounded to BF16.
__device__ inline std::uint32_t add_pairs(std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum;
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}
__device__ inline std::uint32_t subtract_pairs(std::uint32_t a, std::uint32_t b) {
  std::uint32_t difference;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}

// Both values rounded to BF16; NaN becomes the canonical one.
__device__ inline std::uint32_t round_pair(float low, float high) {
  std::uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// The BF16 value nearest to `value`.
__device__ inline float round_value(float value) {
  return high_value(round_pair(0.0F, value));
}

// The same BF16 value (the upper half of `value`) in both halves.
__device__ inline std::uint32_t both_halves(float value) {
  return __byte_perm(__float_as_uint(value), 0U, 0x3232U);
}

}  // namespace dsv4rt::cuda
