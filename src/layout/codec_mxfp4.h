// MXFP4: groups of 32 E2M1 values that share one E8M0 scale.
//
//   value = E2M1 code * 2^(scale byte - 127)
//   32 values -> 16 bytes, low nibble first
#pragma once

#include <cstddef>
#include <cstdint>

#include "layout/amax.h"
#include "layout/codec_e2m1.h"
#include "layout/codec_e8m0.h"

namespace dsv4rt {

inline constexpr int kMxfp4GroupValues = 32;
inline constexpr int kMxfp4GroupBytes = kMxfp4GroupValues / 2;

// Writes 16 bytes of codes and returns the scale byte.
constexpr std::uint8_t encode_mxfp4_group(const float* values, std::byte* codes) {
  const std::uint8_t scale_code = e8m0_scale_for_e2m1(finite_amax(values, kMxfp4GroupValues));
  const float scale = decode_e8m0(scale_code);
  for (int i = 0; i < kMxfp4GroupBytes; ++i) {
    codes[i] = std::byte{pack_e2m1(encode_e2m1(values[2 * i] / scale), encode_e2m1(values[2 * i + 1] / scale))};
  }
  return scale_code;
}

constexpr void decode_mxfp4_group(const std::byte* codes, std::uint8_t scale_code, float* values) {
  const float scale = decode_e8m0(scale_code);
  for (int i = 0; i < kMxfp4GroupBytes; ++i) {
    const auto pair = std::to_integer<std::uint8_t>(codes[i]);
    values[2 * i] = decode_e2m1(pair) * scale;
    values[2 * i + 1] = decode_e2m1(static_cast<std::uint8_t>(pair >> 4)) * scale;
  }
}

}  // namespace dsv4rt
