// E2M1 ("FP4"): sign, 2 exponent bits with bias 1, 1 mantissa bit; no NaN and no infinities.
//
//   code       0    1    2    3    4    5    6    7      (+8: the same, negative)
//   value      0   0.5   1   1.5   2    3    4    6
//
// Two codes share a byte: the value with the even index lies in the low nibble.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace dsv4rt {

inline constexpr float kE2m1Max = 6.0f;

// Value of every code.
inline constexpr std::array<float, 16> kE2m1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// Nearest code in 0..15, ties to the even code. Magnitudes above 6, infinities included, saturate to
// +-6. The sign survives: -0 and negative values that round to zero give 8. The format cannot say NaN:
// a NaN of either sign gives 0 (+0), so that it adds nothing to a score.
constexpr std::uint8_t encode_e2m1(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 28) & 8u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0;
  std::uint32_t code = 0;
  if (magnitude >= std::bit_cast<std::uint32_t>(kE2m1Max)) {
    code = 7;
  } else if (magnitude >= std::bit_cast<std::uint32_t>(1.0f)) {
    constexpr std::uint32_t kBiasDifference = 127 - 1;
    code = ((magnitude + 0x1fffffu + ((magnitude >> 22) & 1u)) >> 22) - (kBiasDifference << 1);
  } else {
    // Floats in [2^22, 2^23) are 0.5 apart: the addition itself rounds to the subnormal grid.
    constexpr float kGrid = 4194304.0f;
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + kGrid) - std::bit_cast<std::uint32_t>(kGrid);
  }
  return static_cast<std::uint8_t>(sign | code);
}

// Exact value; only the low four bits of `code` count.
constexpr float decode_e2m1(std::uint8_t code) {
  return kE2m1Values[code & 0xfu];
}

constexpr std::uint8_t pack_e2m1(std::uint8_t even_code, std::uint8_t odd_code) {
  return static_cast<std::uint8_t>((even_code & 0xfu) | ((odd_code & 0xfu) << 4));
}

// decode_e2m1(encode_e2m1(value)) without branches.
constexpr float round_e2m1(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  const float clamped = magnitude < kE2m1Max ? magnitude : kE2m1Max;
  // 2^22 times the power of two at or below the magnitude, at least 2^22: its float spacing is the grid's there.
  const std::uint32_t binade = std::bit_cast<std::uint32_t>(clamped) & 0x7f800000u;
  const float grid = std::bit_cast<float>((binade < 0x3f800000u ? 0x3f800000u : binade) + (22u << 23));
  const float rounded = (clamped + grid) - grid;
  const float result = std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) | (bits & 0x80000000u));
  return magnitude != magnitude ? 0.0f : result;
}

static_assert(encode_e2m1(kE2m1Max) == 7 && decode_e2m1(7) == kE2m1Max);
static_assert(encode_e2m1(5.0f) == 6 && encode_e2m1(2.5f) == 4 && encode_e2m1(0.25f) == 0 && encode_e2m1(0.75f) == 2);
static_assert(encode_e2m1(std::numeric_limits<float>::quiet_NaN()) == 0);
static_assert([] {
  for (const float value : {0.0f, 0.24f, 0.25f, 0.26f, 0.5f, 0.74f, 0.75f, 1.25f, 1.3f, 1.75f, 2.5f, 3.5f, 4.9f, 5.0f,
                            5.1f, 6.0f, 7.0f, std::numeric_limits<float>::infinity()}) {
    if (round_e2m1(value) != decode_e2m1(encode_e2m1(value))) return false;
    if (round_e2m1(-value) != decode_e2m1(encode_e2m1(-value))) return false;
  }
  return true;
}());

}  // namespace dsv4rt
