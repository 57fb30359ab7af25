// NVFP4: groups of 16 E2M1 values that share one E4M3 scale, under an optional FP32 scale of the tensor.
//
//   value = E2M1 code * E4M3 scale * global scale
//   16 values -> 8 bytes, low nibble first
//
// Cache rows use a global scale of 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "layout/amax.h"
#include "layout/codec_e2m1.h"
#include "layout/codec_e4m3.h"

namespace dsv4rt {

inline constexpr int kNvfp4GroupValues = 16;
inline constexpr int kNvfp4GroupBytes = kNvfp4GroupValues / 2;

// E4M3 code of (amax / 6) / global_scale, FP32 quotients. `amax` is finite and >= 0, `global_scale` finite
// and > 0. Saturates at 448; a quotient of at most 2^-10 gives code 0, which erases the group.
constexpr std::uint8_t nvfp4_group_scale(float amax, float global_scale = 1.0f) {
  return encode_e4m3(amax / kE2m1Max / global_scale);
}

// Writes 8 bytes of codes and returns the scale code. Each value is divided by the FP32 product of both
// scales (correctly rounded) and then rounded to the grid; under a zero scale every code is +0.
constexpr std::uint8_t encode_nvfp4_group(const float* values, std::byte* codes, float global_scale = 1.0f) {
  const std::uint8_t scale_code = nvfp4_group_scale(finite_amax(values, kNvfp4GroupValues), global_scale);
  const float scale = decode_e4m3(scale_code) * global_scale;
  const auto encode = [scale](float value) { return scale > 0.0f ? encode_e2m1(value / scale) : std::uint8_t{0}; };
  for (int i = 0; i < kNvfp4GroupBytes; ++i) {
    codes[i] = std::byte{pack_e2m1(encode(values[2 * i]), encode(values[2 * i + 1]))};
  }
  return scale_code;
}

constexpr void decode_nvfp4_group(const std::byte* codes, std::uint8_t scale_code, float* values,
                                  float global_scale = 1.0f) {
  const float scale = decode_e4m3(scale_code) * global_scale;
  for (int i = 0; i < kNvfp4GroupBytes; ++i) {
    const auto pair = std::to_integer<std::uint8_t>(codes[i]);
    values[2 * i] = decode_e2m1(pair) * scale;
    values[2 * i + 1] = decode_e2m1(static_cast<std::uint8_t>(pair >> 4)) * scale;
  }
}

}  // namespace dsv4rt
