// NVFP4 matrices as the cuBLAS documentation describes them, apart from the code under test.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bfloat16.h"
#include "layout/codec_nvfp4.h"

namespace dsv4rt::test {

// Value (row, k) of a matrix of codes [rows, inputs / 2] and tiled scales as cuBLASLt reads it, without the global
// scale. The place of a scale is the documentation's own expression, and its sign does not count.
inline float nvfp4_value(std::span<const std::byte> codes, std::span<const std::byte> scales, std::int64_t inputs,
                         std::int64_t row, std::int64_t k) {
  const auto pair = std::to_integer<std::uint8_t>(codes[static_cast<std::size_t>((row * inputs + k) / 2)]);
  const std::int64_t sf_inner_dim = (inputs / 16 + 3) / 4 * 4;
  const std::int64_t group = k / 16;
  const std::int64_t tile = (group / 4 * 4 + row / 128 * sf_inner_dim) * 128;
  const std::int64_t outer = row % 128;
  const std::byte scale = scales[static_cast<std::size_t>(tile + (outer % 32) * 16 + (outer / 32) * 4 + group % 4)];
  return decode_e2m1(static_cast<std::uint8_t>(k % 2 == 0 ? pair : pair >> 4)) *
         decode_e4m3(std::to_integer<std::uint8_t>(scale) & 0x7fU);
}

// Each value through NVFP4; exact in BF16 when the global scale is a power of two.
inline void round_nvfp4(std::vector<bf16>& values, float global_scale) {
  for (std::size_t first = 0; first < values.size(); first += kNvfp4GroupValues) {
    std::array<float, kNvfp4GroupValues> group;
    std::array<std::byte, kNvfp4GroupBytes> codes;
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
    std::transform(begin, begin + kNvfp4GroupValues, group.begin(), to_float);
    const std::uint8_t scale = encode_nvfp4_group(group.data(), codes.data(), global_scale);
    decode_nvfp4_group(codes.data(), scale, group.data(), global_scale);
    std::transform(group.begin(), group.end(), begin, to_bf16);
  }
}

}  // namespace dsv4rt::test
