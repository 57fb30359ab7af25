// Row format "fp8_ds_mla": 584 bytes a row, the layout that FlashMLA, vLLM, SGLang and TensorRT-LLM read.
//
//   one row's data (576 B)
//   byte   0                                     448              576
//          +--------------------------------------+----------------+
//          | values 0..447, E4M3                  | 448..511, BF16 |
//          +--------------------------------------+----------------+
//   one row's scales (8 B)
//   byte   0    1    2    3    4    5    6    7    8
//          +----+----+----+----+----+----+----+----+
//          | s0 | s1 | s2 | s3 | s4 | s5 | s6 |  0 |    si: E8M0 of values 64i .. 64i+63
//          +----+----+----+----+----+----+----+----+
//   a block of n rows
//          +-------------------+-------------------+-------------+
//          | n x 576 B of data | n x 8 B of scales | zero padding| to a multiple of 576 B
//          +-------------------+-------------------+-------------+
//
// value = code * 2^(si - 127) for the first 448. Rounding: e8m0_scale_for_e4m3 and encode_e4m3.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsv4rt/row_geometry.h"
#include "layout/amax.h"
#include "layout/bf16_row.h"
#include "layout/codec_e4m3.h"
#include "layout/codec_e8m0.h"

namespace dsv4rt {

struct Fp8DsMlaRow {
  static constexpr int kGroupValues = 64;
  static constexpr int kGroups = kNopeDim / kGroupValues;
  static constexpr int kRopeOffset = kNopeDim;  // bytes from the start of the data part
  static constexpr int kDataBytes = kNopeDim + 2 * kRopeDim;
  static constexpr int kScaleBytes = kGroups + 1;  // the last byte is zero
  static constexpr int kBlockAlignmentBytes = kDataBytes;

  static void encode(const float* values, std::byte* data, std::byte* scales) {
    for (int group = 0; group < kGroups; ++group) {
      const float* in = values + group * kGroupValues;
      std::byte* out = data + group * kGroupValues;
      const std::uint8_t scale_code = e8m0_scale_for_e4m3(finite_amax(in, kGroupValues));
      const float scale = decode_e8m0(scale_code);
      for (int i = 0; i < kGroupValues; ++i) out[i] = std::byte{encode_e4m3(in[i] / scale)};
      scales[group] = std::byte{scale_code};
    }
    scales[kGroups] = std::byte{0};
    encode_bf16_values(values + kNopeDim, kRopeDim, data + kRopeOffset);
  }

  static void decode(const std::byte* data, const std::byte* scales, float* values) {
    for (int group = 0; group < kGroups; ++group) {
      const float scale = decode_e8m0(std::to_integer<std::uint8_t>(scales[group]));
      for (int i = group * kGroupValues; i < (group + 1) * kGroupValues; ++i) {
        values[i] = kE4m3Values[std::to_integer<std::uint8_t>(data[i])] * scale;
      }
    }
    decode_bf16_values(data + kRopeOffset, kRopeDim, values + kNopeDim);
  }
};
static_assert(Fp8DsMlaRow::kGroups * Fp8DsMlaRow::kGroupValues == kNopeDim && Fp8DsMlaRow::kGroups == 7);
static_assert(Fp8DsMlaRow::kDataBytes == 576 && Fp8DsMlaRow::kScaleBytes == 8);
static_assert(Fp8DsMlaRow::kRopeOffset % 16 == 0, "the BF16 part is read with 16-byte loads");

}  // namespace dsv4rt
