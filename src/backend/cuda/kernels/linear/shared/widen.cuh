// Widens packed E4M3 weights to BF16 with their scale; packed_linear.h has the bits of a word.
#pragma once

#include <cstdint>

namespace dsv4rt::cuda {

// A code's exponent and mantissa bits in their place in a BF16 read as its value times 2^-120.
__device__ __forceinline__ std::uint32_t widening_factors(float weight_scale) {
  return __byte_perm(__float_as_uint(weight_scale * 0x1p120F), 0, 0x3232);
}

// Two words of four packed codes: the A fragment of one step of 16 inputs.
__device__ __forceinline__ void widen(std::uint32_t first, std::uint32_t second, std::uint32_t factors,
                                      std::uint32_t* a) {
  const auto multiply = [factors](std::uint32_t values) {
    std::uint32_t product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(values), "r"(factors));
    return product;
  };
  const auto in_place = [](std::uint32_t word) { return word & 0x87f087f0U; };
  const auto folded = [](std::uint32_t word) { return ((word << 4) & 0x80f080f0U) | ((word >> 4) & 0x07000700U); };
  a[0] = multiply(in_place(first));
  a[1] = multiply(folded(first));
  a[2] = multiply(in_place(second));
  a[3] = multiply(folded(second));
}

}  // namespace dsv4rt::cuda
