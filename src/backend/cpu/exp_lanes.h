// exp of FP32 vectors, the same bits on every instruction set.
//
// exp(x) = 2^n * e^r with n = round(x / ln 2), |r| <= ln(2) / 2 (Cody-Waite reduction in two parts) and
// a Taylor polynomial of degree 7. Only multiplications, additions and bit operations, none fused, so
// that scalar, SSE, AVX2 and AVX-512 code agree. Error at most 2 ulp for results that are normal
// numbers; arguments below -87 give 0, above 88.7 infinity, NaN gives NaN.
#pragma once

#include <cstdint>

namespace dsv4rt::cpu {

// Vectors of N FP32 or 32-bit integers. Everything over them is always inlined: translation units are
// compiled for different instruction sets and must not share out-of-line copies.
template <int N>
struct LanesOf {
  using Float [[gnu::vector_size(N * 4)]] = float;
  using Int [[gnu::vector_size(N * 4)]] = std::int32_t;
  using Bits [[gnu::vector_size(N * 4)]] = std::uint32_t;  // unsigned: arithmetic on it may wrap
};

template <int N>
[[gnu::always_inline]] inline typename LanesOf<N>::Float exp_lanes(typename LanesOf<N>::Float x) {
  using Float = typename LanesOf<N>::Float;
  using Int = typename LanesOf<N>::Int;
  using Bits = typename LanesOf<N>::Bits;
  constexpr float kLowest = -87.0f;
  constexpr float kHighest = 88.7f;
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e4p-1f;  // 15 bits: the product with n is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  constexpr float kRoundMagic = 0x1.8p23f;  // adding it rounds to an integer in the low mantissa bits

  const Float shifted = x * kLog2E + kRoundMagic;
  const Float n = shifted - kRoundMagic;
  // Arguments outside the range give meaningless exponents here and are replaced at the end.
  const Bits n_bits = (Bits)shifted - (Bits)(Float{} + kRoundMagic);
  Float r = x - n * kLn2High;
  r = r - n * kLn2Low;
  Float p = Float{} + 0x1.a01a02p-13f;  // 1/5040
  p = p * r + 0x1.6c16c2p-10f;          // 1/720
  p = p * r + 0x1.111112p-7f;           // 1/120
  p = p * r + 0x1.555556p-5f;           // 1/24
  p = p * r + 0x1.555556p-3f;           // 1/6
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // Two factors, because 2^128 is not a float while exp(88.7) is.
  const Bits half = (Bits)((Int)n_bits >> 1);
  p = p * (Float)((half + 127) << 23);
  p = p * (Float)((n_bits - half + 127) << 23);
  p = x < kLowest ? Float{} : p;
  return x > kHighest ? Float{} + __builtin_inff() : p;
}

// The same for one value.
[[gnu::always_inline]] inline float exp_scalar(float x) {
  return exp_lanes<4>(typename LanesOf<4>::Float{x, x, x, x})[0];
}

}  // namespace dsv4rt::cpu
