// Row format "bf16": 512 values of two bytes, for debugging and exactness tests; also the building
// block of the rope parts of the other rows.
//
//   byte   0                                                       1024
//          +---------------------------------------------------------+
//   data   | 512 x BF16, round to nearest even                       |
//          +---------------------------------------------------------+
//   scale  none
//
// Infinities stay, NaN stays NaN (quieted), finite values above the BF16 range become infinities.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bfloat16.h"
#include "dsv4rt/row_geometry.h"
#include "layout/bytes.h"

namespace dsv4rt {

inline void encode_bf16_values(const float* values, int count, std::byte* data) {
  for (int i = 0; i < count; ++i) store_bytes(data + 2 * i, to_bf16(values[i]).bits);
}

inline void decode_bf16_values(const std::byte* data, int count, float* values) {
  for (int i = 0; i < count; ++i) values[i] = to_float(bf16{load_bytes<std::uint16_t>(data + 2 * i)});
}

struct Bf16Row {
  static constexpr int kDataBytes = kHeadDim * 2;
  static constexpr int kScaleBytes = 0;
  static constexpr int kBlockAlignmentBytes = 16;

  static void encode(const float* values, std::byte* data, std::byte* /*scales*/) {
    encode_bf16_values(values, kHeadDim, data);
  }
  static void decode(const std::byte* data, const std::byte* /*scales*/, float* values) {
    decode_bf16_values(data, kHeadDim, values);
  }
};
static_assert(Bf16Row::kDataBytes == 1024);

}  // namespace dsv4rt
