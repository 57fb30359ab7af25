// Deterministic floats for codec tests: structured and random bit patterns.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace dsv4rt {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN();

inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline float next_above(float value) { return std::nextafter(value, kInfinity); }
inline float next_below(float value) { return std::nextafter(value, -kInfinity); }

// Calls visit(float) for more than two million values: every upper half of a float under lower halves
// that sit at and around the rounding points (NaN and infinities included), then random magnitudes in
// the range where the small formats have their codes.
template <class Visitor>
void for_many_floats(Visitor&& visit) {
  constexpr std::uint32_t kLowerHalves[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper) {
    for (const std::uint32_t lower : kLowerHalves) visit(float_of((upper << 16) | lower));
  }
  std::mt19937 random(20240607);
  std::uniform_real_distribution<float> exponent(-14.0f, 11.0f);
  std::uniform_real_distribution<float> mantissa(-2.0f, 2.0f);
  for (int i = 0; i < 1'700'000; ++i) visit(std::ldexp(mantissa(random), static_cast<int>(exponent(random))));
}

}  // namespace dsv4rt
