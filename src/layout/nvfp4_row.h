// Row format "nvfp4": 384 bytes a row, of which 380 carry information.
//
//   one row's data (352 B)
//   byte   0                                     224              352
//          +--------------------------------------+----------------+
//          | values 0..447, E2M1, low nibble first| 448..511, BF16 |
//          +--------------------------------------+----------------+
//   one row's scales (32 B)
//   byte   0                                      28          32
//          +--------------------------------------+-----------+
//          | 28 x E4M3, one per 16 values         | 4 x zero  |
//          +--------------------------------------+-----------+
//   a block of n rows
//          +-------------------+--------------------+
//          | n x 352 B of data | n x 32 B of scales |   always a multiple of 384 B
//          +-------------------+--------------------+
//
// value = code * scale for the first 448; see codec_nvfp4.h (the global scale is 1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dsv4rt/row_geometry.h"
#include "layout/bf16_row.h"
#include "layout/codec_nvfp4.h"

namespace dsv4rt {

struct Nvfp4Row {
  static constexpr int kGroups = kNopeDim / kNvfp4GroupValues;
  static constexpr int kRopeOffset = kNopeDim / 2;  // bytes from the start of the data part
  static constexpr int kDataBytes = kRopeOffset + 2 * kRopeDim;
  static constexpr int kScalePaddingBytes = 4;  // keeps every row's scales aligned for 16-byte loads
  static constexpr int kScaleBytes = kGroups + kScalePaddingBytes;
  static constexpr int kBlockAlignmentBytes = 16;

  static void encode(const float* values, std::byte* data, std::byte* scales) {
    for (int group = 0; group < kGroups; ++group) {
      scales[group] =
          std::byte{encode_nvfp4_group(values + group * kNvfp4GroupValues, data + group * kNvfp4GroupBytes)};
    }
    std::memset(scales + kGroups, 0, kScalePaddingBytes);
    encode_bf16_values(values + kNopeDim, kRopeDim, data + kRopeOffset);
  }

  static void decode(const std::byte* data, const std::byte* scales, float* values) {
    for (int group = 0; group < kGroups; ++group) {
      decode_nvfp4_group(data + group * kNvfp4GroupBytes, std::to_integer<std::uint8_t>(scales[group]),
                         values + group * kNvfp4GroupValues);
    }
    decode_bf16_values(data + kRopeOffset, kRopeDim, values + kNopeDim);
  }
};
static_assert(Nvfp4Row::kGroups == 28 && Nvfp4Row::kRopeOffset == 224);
static_assert(Nvfp4Row::kDataBytes == 352 && Nvfp4Row::kScaleBytes == 32);
static_assert(Nvfp4Row::kDataBytes % 16 == 0 && Nvfp4Row::kScaleBytes % 16 == 0);

}  // namespace dsv4rt
