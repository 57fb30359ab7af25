// Sine and cosine of FP32 angles, the same bits on every backend.
//
// Computed in FP64 with multiplications and additions that nothing fuses: reduction by multiples of pi/2 in
// three parts, then Taylor polynomials. Before the rounding to FP32 the error is below 2^-35 for angles up to
// 2^29, so that the result is the correctly rounded one but for a few angles in 10^4.
#pragma once

#include <bit>
#include <cstdint>

namespace dsv4rt {

struct SineCosine {
  float sine = 0;
  float cosine = 1;
};

constexpr SineCosine sine_cosine(float angle) {
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kHalfPiHigh = 0x1.921fb4p+0;  // 23 bits: products with |n| < 2^30 are exact, here and below
  constexpr double kHalfPiMiddle = 0x1.4442dp-24;
  constexpr double kHalfPiLow = 0x1.8469898cc5170p-48;
  constexpr double kRoundMagic = 0x1.8p52;  // adding it rounds to an integer in the low mantissa bits

  const double x = static_cast<double>(angle);
  const double shifted = x * kTwoOverPi + kRoundMagic;
  const double n = shifted - kRoundMagic;
  const auto quadrant = static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(shifted));
  double r = x - n * kHalfPiHigh;
  r = r - n * kHalfPiMiddle;
  r = r - n * kHalfPiLow;

  const double r2 = r * r;
  double s = -0x1.ae64567f544e4p-26;   // -1/11!
  s = s * r2 + 0x1.71de3a556c734p-19;  // 1/9!
  s = s * r2 - 0x1.a01a01a01a01ap-13;  // -1/7!
  s = s * r2 + 0x1.1111111111111p-7;   // 1/5!
  s = s * r2 - 0x1.5555555555555p-3;   // -1/3!
  s = r + r * (r2 * s);
  double c = 0x1.1eed8eff8d898p-29;    // 1/12!
  c = c * r2 - 0x1.27e4fb7789f5cp-22;  // -1/10!
  c = c * r2 + 0x1.a01a01a01a01ap-16;  // 1/8!
  c = c * r2 - 0x1.6c16c16c16c17p-10;  // -1/6!
  c = c * r2 + 0x1.5555555555555p-5;   // 1/4!
  c = c * r2 - 0.5;
  c = c * r2 + 1.0;

  const auto sine = static_cast<float>((quadrant & 1U) != 0 ? c : s);
  const auto cosine = static_cast<float>((quadrant & 1U) != 0 ? s : c);
  return {.sine = (quadrant & 2U) != 0 ? -sine : sine, .cosine = ((quadrant + 1U) & 2U) != 0 ? -cosine : cosine};
}

}  // namespace dsv4rt
