// E8M0 (also called UE8M0): a power-of-two block scale in one byte, and the two rules that choose it.
//
//   byte b     0 .. 254: 2^(b - 127)      255: NaN
//
// The rules look for the smallest power of two that brings the block's absolute maximum into the
// element format's range. Other engines clamp the scale instead of the maximum; the floors below are
// the ones of DeepSeek's reference kernels (act_quant, fp4_act_quant).
#pragma once

#include <bit>
#include <cstdint>

#include "layout/codec_e2m1.h"
#include "layout/codec_e4m3.h"

namespace dsv4rt {

inline constexpr int kE8m0Bias = 127;
inline constexpr std::uint8_t kE8m0NanCode = 0xff;

// Lower bounds of the absolute maximum, not of the scale. The first caps E4M3 scales from below at
// 2^-22, the second E2M1 scales at 2^-126, the smallest normal FP32.
inline constexpr float kE4m3AmaxFloor = 1e-4f;
inline constexpr float kE2m1AmaxFloor = 6.0f * 0x1p-126f;

// Smallest e with 2^e >= value, from the bits alone: exact at powers of two and for subnormals.
// Precondition: value is finite and > 0.
constexpr int ceil_log2(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t mantissa = bits & 0x7fffffu;
  const int exponent = static_cast<int>(bits >> 23);
  if (exponent != 0) return exponent - 127 + (mantissa != 0 ? 1 : 0);
  const int width = static_cast<int>(std::bit_width(mantissa));  // value = mantissa * 2^-149
  return width - 1 - 149 + (std::has_single_bit(mantissa) ? 0 : 1);
}

// 2^(code - 127); NaN for 255.
constexpr float decode_e8m0(std::uint8_t code) {
  if (code == kE8m0NanCode) return std::bit_cast<float>(0x7fc00000u);
  if (code == 0) return 0x1p-127f;
  return std::bit_cast<float>(std::uint32_t{code} << 23);
}

// Code of the scale of a block of E4M3 values: 2^ceil(log2(max(amax, 1e-4) / 448)). `amax` is finite and
// has no sign (see finite_amax). 448 = 1.75 * 2^8: the addition carries into the exponent where the mantissa is
// above 1.75.
constexpr std::uint8_t e8m0_scale_for_e4m3(float amax) {
  constexpr auto kFloorBits = std::bit_cast<std::uint32_t>(kE4m3AmaxFloor);
  const auto bits = std::bit_cast<std::uint32_t>(amax);  // no sign: values are ordered like their bits
  return static_cast<std::uint8_t>((((bits > kFloorBits ? bits : kFloorBits) + 0x1fffffu) >> 23) - 8u);
}

// Code of the scale of a block of E2M1 values (MXFP4): 2^ceil(log2(max(amax, 6 * 2^-126) / 6)). As above, with
// 6 = 1.5 * 2^2.
constexpr std::uint8_t e8m0_scale_for_e2m1(float amax) {
  constexpr auto kFloorBits = std::bit_cast<std::uint32_t>(kE2m1AmaxFloor);
  const auto bits = std::bit_cast<std::uint32_t>(amax);
  return static_cast<std::uint8_t>((((bits > kFloorBits ? bits : kFloorBits) + 0x3fffffu) >> 23) - 2u);
}

static_assert(e8m0_scale_for_e4m3(448.0f) == 127 && e8m0_scale_for_e2m1(6.0f) == 127);
static_assert(e8m0_scale_for_e4m3(0.0f) == 127 - 22 && e8m0_scale_for_e2m1(0.0f) == 1);

}  // namespace dsv4rt
