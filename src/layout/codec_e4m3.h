// E4M3 ("fn" variant: no infinities): sign, 4 exponent bits with bias 7, 3 mantissa bits.
//
//   code    s eeee mmm
//   value   e > 0: 2^(e-7) * (1 + m/8)      e = 0: 2^-6 * m/8 (subnormals, step 2^-9)
//   limits  0x7e = 448 is the largest value, 0x08 = 2^-6 the smallest normal, 0x01 = 2^-9 the smallest
//   NaN     0x7f and 0xff
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace dsv4rt {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr std::uint8_t kE4m3MaxCode = 0x7e;
inline constexpr std::uint8_t kE4m3NanCode = 0x7f;

// Nearest code, ties to the even code. Magnitudes above 448, infinities included, saturate to +-448.
// The sign survives everywhere: -0 and negative values that round to zero give 0x80; NaN gives 0x7f or
// 0xff by its sign bit.
constexpr std::uint8_t encode_e4m3(float value) {
  constexpr std::uint32_t kInfinityBits = 0x7f800000u;
  constexpr std::uint32_t kMinNormalBits = 0x3c800000u;  // 2^-6
  constexpr std::uint32_t kBiasDifference = 127 - 7;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t code = 0;
  if (magnitude > kInfinityBits) {
    code = kE4m3NanCode;
  } else if (magnitude >= std::bit_cast<std::uint32_t>(kE4m3Max)) {
    code = kE4m3MaxCode;
  } else if (magnitude >= kMinNormalBits) {
    // Drop 20 mantissa bits; a carry runs into the exponent as it should.
    code = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (kBiasDifference << 3);
  } else {
    // Floats in [2^14, 2^15) are 2^-9 apart: the addition itself rounds to the subnormal grid.
    constexpr float kGrid = 16384.0f;
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + kGrid) - std::bit_cast<std::uint32_t>(kGrid);
  }
  return static_cast<std::uint8_t>(sign | code);
}

// Exact value of a code; the NaN codes give a quiet NaN of their sign.
constexpr float decode_e4m3(std::uint8_t code) {
  const float sign = (code & 0x80u) != 0 ? -1.0f : 1.0f;
  const std::uint32_t exponent = (code >> 3) & 0xfu;
  const std::uint32_t mantissa = code & 7u;
  if ((code & 0x7fu) == kE4m3NanCode) {
    return std::bit_cast<float>((std::uint32_t{code & 0x80u} << 24) | 0x7fc00000u);
  }
  if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-9f;
  return sign * std::bit_cast<float>(((exponent + 120u) << 23) | (mantissa << 20));
}

// decode_e4m3 of every code.
inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (std::uint32_t code = 0; code < 256; ++code) values[code] = decode_e4m3(static_cast<std::uint8_t>(code));
  return values;
}();

// decode_e4m3(encode_e4m3(value)) without branches, so that loops over it vectorize. NaN stays NaN.
constexpr float round_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  const float clamped = magnitude < kE4m3Max ? magnitude : kE4m3Max;
  // 2^20 times the power of two at or below the magnitude: its float spacing is the E4M3 spacing there.
  const std::uint32_t binade = std::bit_cast<std::uint32_t>(clamped) & 0x7f800000u;
  const float grid = std::bit_cast<float>((binade < 0x3c800000u ? 0x3c800000u : binade) + (20u << 23));
  const float rounded = (clamped + grid) - grid;
  const float result = std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) | (bits & 0x80000000u));
  return magnitude != magnitude ? value : result;
}

static_assert(decode_e4m3(kE4m3MaxCode) == kE4m3Max && encode_e4m3(kE4m3Max) == kE4m3MaxCode);
static_assert(encode_e4m3(std::numeric_limits<float>::infinity()) == kE4m3MaxCode);
static_assert(decode_e4m3(0x08) == 0x1p-6f && decode_e4m3(0x01) == 0x1p-9f && decode_e4m3(0x38) == 1.0f);

}  // namespace dsv4rt
