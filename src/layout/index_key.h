// Index-key formats: the 128 values that the lightning indexer scores.
//
//             one key's data                        one key's scales
//   "mxfp4"   64 B: 128 x E2M1, low nibble first    4 B: E8M0, one per 32 values
//   "nvfp4"   64 B: 128 x E2M1, low nibble first    8 B: E4M3, one per 16 values
//   "fp8"    128 B: 128 x E4M3                      4 B: one FP32, always a power of two
//   "bf16"   256 B: 128 x BF16                      none
//
//   a block of n keys
//          +-----------------------+-------------------------+--------------+
//          | codes of all n keys   | scales of all n keys    | zero padding | to a multiple of 16 B
//          +-----------------------+-------------------------+--------------+
//
// The scale of key r is at n * data bytes + r * scale bytes, never next to its codes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsv4rt/row_geometry.h"
#include "layout/amax.h"
#include "layout/bf16_row.h"
#include "layout/bytes.h"
#include "layout/codec_e4m3.h"
#include "layout/codec_e8m0.h"
#include "layout/codec_mxfp4.h"
#include "layout/codec_nvfp4.h"

namespace dsv4rt {

inline constexpr int kIndexBlockAlignmentBytes = 16;

struct Mxfp4Key {
  static constexpr int kGroups = kIndexHeadDim / kMxfp4GroupValues;
  static constexpr int kDataBytes = kIndexHeadDim / 2;
  static constexpr int kScaleBytes = kGroups;
  static constexpr int kBlockAlignmentBytes = kIndexBlockAlignmentBytes;

  static void encode(const float* values, std::byte* data, std::byte* scales) {
    for (int group = 0; group < kGroups; ++group) {
      scales[group] =
          std::byte{encode_mxfp4_group(values + group * kMxfp4GroupValues, data + group * kMxfp4GroupBytes)};
    }
  }
  static void decode(const std::byte* data, const std::byte* scales, float* values) {
    for (int group = 0; group < kGroups; ++group) {
      decode_mxfp4_group(data + group * kMxfp4GroupBytes, std::to_integer<std::uint8_t>(scales[group]),
                         values + group * kMxfp4GroupValues);
    }
  }
};
static_assert(Mxfp4Key::kDataBytes == 64 && Mxfp4Key::kScaleBytes == 4);

struct Nvfp4Key {
  static constexpr int kGroups = kIndexHeadDim / kNvfp4GroupValues;
  static constexpr int kDataBytes = kIndexHeadDim / 2;
  static constexpr int kScaleBytes = kGroups;
  static constexpr int kBlockAlignmentBytes = kIndexBlockAlignmentBytes;

  static void encode(const float* values, std::byte* data, std::byte* scales) {
    for (int group = 0; group < kGroups; ++group) {
      scales[group] =
          std::byte{encode_nvfp4_group(values + group * kNvfp4GroupValues, data + group * kNvfp4GroupBytes)};
    }
  }
  static void decode(const std::byte* data, const std::byte* scales, float* values) {
    for (int group = 0; group < kGroups; ++group) {
      decode_nvfp4_group(data + group * kNvfp4GroupBytes, std::to_integer<std::uint8_t>(scales[group]),
                         values + group * kNvfp4GroupValues);
    }
  }
};
static_assert(Nvfp4Key::kDataBytes == 64 && Nvfp4Key::kScaleBytes == 8);

// The scale follows the rule of E4M3 blocks (e8m0_scale_for_e4m3) and is stored as FP32, the type that
// readers of FP8 keys multiply with. Being a power of two it keeps de-quantization exact.
struct Fp8Key {
  static constexpr int kDataBytes = kIndexHeadDim;
  static constexpr int kScaleBytes = 4;
  static constexpr int kBlockAlignmentBytes = kIndexBlockAlignmentBytes;

  static void encode(const float* values, std::byte* data, std::byte* scales) {
    const float scale = decode_e8m0(e8m0_scale_for_e4m3(finite_amax(values, kIndexHeadDim)));
    for (int i = 0; i < kIndexHeadDim; ++i) data[i] = std::byte{encode_e4m3(values[i] / scale)};
    store_bytes(scales, scale);
  }
  static void decode(const std::byte* data, const std::byte* scales, float* values) {
    const auto scale = load_bytes<float>(scales);
    for (int i = 0; i < kIndexHeadDim; ++i) values[i] = kE4m3Values[std::to_integer<std::uint8_t>(data[i])] * scale;
  }
};
static_assert(Fp8Key::kDataBytes == 128 && Fp8Key::kScaleBytes == sizeof(float));

struct Bf16Key {
  static constexpr int kDataBytes = kIndexHeadDim * 2;
  static constexpr int kScaleBytes = 0;
  static constexpr int kBlockAlignmentBytes = kIndexBlockAlignmentBytes;

  static void encode(const float* values, std::byte* data, std::byte* /*scales*/) {
    encode_bf16_values(values, kIndexHeadDim, data);
  }
  static void decode(const std::byte* data, const std::byte* /*scales*/, float* values) {
    decode_bf16_values(data, kIndexHeadDim, values);
  }
};
static_assert(Bf16Key::kDataBytes == 256);

}  // namespace dsv4rt
