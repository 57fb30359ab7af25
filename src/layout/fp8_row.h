// Row format "fp8_row": 580 bytes a row, one FP32 scale for the whole row (the seed profile's rows).
//
//   one row's data (576 B)
//   byte   0                                     448              576
//          +--------------------------------------+----------------+
//          | values 0..447, E4M3                  | 448..511, BF16 |
//          +--------------------------------------+----------------+
//   one row's scale (4 B)
//   byte   0              4
//          +---------------+
//          | inv_scale FP32|
//          +---------------+
//   a block of n rows
//          +-------------------+------------------+--------------+
//          | n x 576 B of data | n x 4 B of scale | zero padding | to a multiple of 16 B
//          +-------------------+------------------+--------------+
//
// inv_scale is what a code is multiplied with: value = code * inv_scale, inv_scale = amax / 448 over the
// first 448 values, code = E4M3(value / inv_scale); both quotients are correctly rounded FP32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsv4rt/row_geometry.h"
#include "layout/amax.h"
#include "layout/bf16_row.h"
#include "layout/bytes.h"
#include "layout/codec_e4m3.h"

namespace dsv4rt {

struct Fp8Row {
  static constexpr int kRopeOffset = kNopeDim;  // bytes from the start of the data part
  static constexpr int kDataBytes = kNopeDim + 2 * kRopeDim;
  static constexpr int kScaleBytes = 4;
  static constexpr int kBlockAlignmentBytes = 16;

  // Lower bound of the row's absolute maximum: keeps inv_scale >= 2^-126, a normal number, so that a row
  // of zeros divides by no zero and decodes to zeros.
  static constexpr float kAmaxFloor = kE4m3Max * 0x1p-126f;

  static constexpr float inv_scale(float amax) { return (amax > kAmaxFloor ? amax : kAmaxFloor) / kE4m3Max; }

  static void encode(const float* values, std::byte* data, std::byte* scales) {
    const float scale = inv_scale(finite_amax(values, kNopeDim));
    for (int i = 0; i < kNopeDim; ++i) data[i] = std::byte{encode_e4m3(values[i] / scale)};
    store_bytes(scales, scale);
    encode_bf16_values(values + kNopeDim, kRopeDim, data + kRopeOffset);
  }

  static void decode(const std::byte* data, const std::byte* scales, float* values) {
    const auto scale = load_bytes<float>(scales);
    for (int i = 0; i < kNopeDim; ++i) values[i] = kE4m3Values[std::to_integer<std::uint8_t>(data[i])] * scale;
    decode_bf16_values(data + kRopeOffset, kRopeDim, values + kNopeDim);
  }
};
static_assert(Fp8Row::kDataBytes == 576 && Fp8Row::kScaleBytes == sizeof(float));
static_assert(Fp8Row::inv_scale(0.0f) == 0x1p-126f && Fp8Row::inv_scale(448.0f) == 1.0f);

}  // namespace dsv4rt
