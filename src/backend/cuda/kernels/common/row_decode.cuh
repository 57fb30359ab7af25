// Cache rows and index keys to BF16 tiles in shared memory.
//
// Rows are read in units of 16 bytes, consecutive threads reading consecutive units. Every conversion is
// the CPU's: exact, but for the rounding to BF16 that fp8_row products need and that products below the
// BF16 normal range get.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cuda_fp8.h>

#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/mma_tile.cuh"
#include "dsv4rt/row_geometry.h"
#include "dsv4rt/types.h"
#include "layout/codec_e2m1.h"
#include "layout/codec_e4m3.h"
#include "layout/codec_e8m0.h"
#include "layout/fp8_ds_mla.h"
#include "layout/fp8_row.h"
#include "layout/index_key.h"
#include "layout/nvfp4_row.h"
#include "layout/row_format.h"

namespace dsv4rt::cuda {

// Where a row lies. The data part is 16-byte aligned.
struct RowAddress {
  const std::byte* data = nullptr;
  std::int32_t to_scales = 0;  // bytes from the row's data to its scales
};

// The rows of a tile, in shared memory.
template <int kRows>
struct RowAddresses {
  const std::byte* data[kRows];
  std::int32_t to_scales[kRows];

  __device__ RowAddress get(int row) const { return {.data = data[row], .to_scales = to_scales[row]}; }
  __device__ void set(int row, const RowAddress& address) {
    data[row] = address.data;
    to_scales[row] = address.to_scales;
  }
};

__device__ inline RowAddress row_address(const BlockShape& shape, const std::byte* block, std::int32_t row) {
  return {.data = block + shape.data_offset(row),
          .to_scales = static_cast<std::int32_t>(shape.scale_offset(row) - shape.data_offset(row))};
}

// Four E4M3 codes times `scale`. The conversion instruction gives decode_e4m3's values, NaN included.
__device__ inline void decode_e4m3_x4(std::uint32_t codes, float scale, std::uint32_t (&out)[2]) {
  for (int pair = 0; pair < 2; ++pair) {
    const auto two = static_cast<__nv_fp8x2_storage_t>(codes >> (16 * pair));
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
    out[pair] = round_pair(values.x * scale, values.y * scale);
  }
}

// BF16 bits of the eight E2M1 magnitudes, split in bytes: what a byte permutation looks up.
constexpr std::uint32_t e2m1_table(int first, int shift) {
  std::uint32_t table = 0;
  for (int i = 0; i < 4; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(kE2m1Values[static_cast<std::size_t>(first + i)]) >> 16;
    table |= ((bits >> shift) & 0xffu) << (8 * i);
  }
  return table;
}

// Four E2M1 codes (low 16 bits) times a BF16 scale, given twice. Exact: the product has at most six
// significant bits.
__device__ inline void decode_e2m1_x4(std::uint32_t codes, std::uint32_t scale_pair, std::uint32_t (&out)[2]) {
  constexpr std::uint32_t kLow03 = e2m1_table(0, 0);
  constexpr std::uint32_t kLow47 = e2m1_table(4, 0);
  constexpr std::uint32_t kHigh03 = e2m1_table(0, 8);
  constexpr std::uint32_t kHigh47 = e2m1_table(4, 8);
  const std::uint32_t magnitudes = codes & 0x7777u;
  const std::uint32_t low = __byte_perm(kLow03, kLow47, magnitudes);
  const std::uint32_t high = __byte_perm(kHigh03, kHigh47, magnitudes);
  // Code i's sign stands at bit 4 i + 3.
  const std::uint32_t signs01 = ((codes << 12) & 0x8000u) | ((codes << 24) & 0x80000000u);
  const std::uint32_t signs23 = ((codes << 4) & 0x8000u) | ((codes << 16) & 0x80000000u);
  out[0] = multiply_pairs(__byte_perm(low, high, 0x5140u) | signs01, scale_pair);
  out[1] = multiply_pairs(__byte_perm(low, high, 0x7362u) | signs23, scale_pair);
}

// --- unit decoders: 16 source bytes to kOutputs units of BF16 --------------------------------------------

// Sixteen E4M3 codes.
__device__ inline void decode_e4m3_unit(const uint4& codes, float scale, uint4 (&out)[2]) {
  const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  std::uint32_t values[4][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) decode_e4m3_x4(words[i], scale, values[i]);
  out[0] = make_uint4(values[0][0], values[0][1], values[1][0], values[1][1]);
  out[1] = make_uint4(values[2][0], values[2][1], values[3][0], values[3][1]);
}

// Thirty-two E2M1 codes in two groups of sixteen; a scale each, exact in BF16.
__device__ inline void decode_e2m1_unit(const uint4& codes, float scale0, float scale1, uint4 (&out)[4]) {
  const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  const std::uint32_t scales[2] = {round_pair(scale0, scale0), round_pair(scale1, scale1)};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t even[2];
    std::uint32_t odd[2];
    decode_e2m1_x4(words[i], scales[i / 2], even);
    decode_e2m1_x4(words[i] >> 16, scales[i / 2], odd);
    out[i] = make_uint4(even[0], even[1], odd[0], odd[1]);
  }
}

// How a format's row divides into code units and BF16 units. raw_scale: the scale bytes of a code unit as
// one word, loaded with the codes; store: writes the unit's values to the tile.
enum class CodeKind : std::uint8_t { kE4m3, kE2m1, kNone };
enum class ScaleKind : std::uint8_t { kE8m0Byte, kE4m3Pair, kFloat, kNone };

template <CodeKind kCodes_, ScaleKind kScale_, int kCodedValues, int kPlainValues, int kScaleGroup>
struct UnitLayout {
  static constexpr CodeKind kCodes = kCodes_;
  static constexpr ScaleKind kScale = kScale_;
  static constexpr int kValuesPerUnit = kCodes == CodeKind::kE4m3 ? 16 : kCodes == CodeKind::kE2m1 ? 32 : 8;
  static constexpr int kCodeUnits = kCodedValues / kValuesPerUnit;
  static constexpr int kUnits = kCodeUnits + kPlainValues / kUnitValues;          // units of a cached row
  static constexpr int kTileUnits = (kCodedValues + kPlainValues) / kUnitValues;  // units of the decoded tile
  static constexpr int kUnitsPerScale = kScaleGroup == 0 ? 1 : kScaleGroup / kValuesPerUnit;  // kE8m0Byte

  __device__ static std::uint32_t raw_scale(const RowAddress& row, int unit) {
    const std::byte* scales = row.data + row.to_scales;
    if constexpr (kScale == ScaleKind::kE8m0Byte) {
      return *(reinterpret_cast<const unsigned char*>(scales) + unit / kUnitsPerScale);
    } else if constexpr (kScale == ScaleKind::kE4m3Pair) {
      return *(reinterpret_cast<const unsigned short*>(scales) + unit);
    } else if constexpr (kScale == ScaleKind::kFloat) {
      return *reinterpret_cast<const unsigned int*>(scales);
    } else {
      return 0;
    }
  }

  __device__ static void store(const uint4& source, std::uint32_t raw_scale, int tile_row, int unit, std::byte* tile) {
    const auto put = [&](int tile_unit, const uint4& values) {
      *reinterpret_cast<uint4*>(tile + tile_offset<kTileUnits>(tile_row, tile_unit)) = values;
    };
    if constexpr (kCodes != CodeKind::kNone) {
      if (unit < kCodeUnits) {
        constexpr int kOutputs = kValuesPerUnit / kUnitValues;
        uint4 values[kOutputs];
        if constexpr (kCodes == CodeKind::kE4m3) {
          const float scale = kScale == ScaleKind::kFloat ? std::bit_cast<float>(raw_scale)
                                                          : decode_e8m0(static_cast<std::uint8_t>(raw_scale));
          decode_e4m3_unit(source, scale, values);
        } else if constexpr (kScale == ScaleKind::kE8m0Byte) {
          const float scale = decode_e8m0(static_cast<std::uint8_t>(raw_scale));
          decode_e2m1_unit(source, scale, scale, values);
        } else {
          decode_e2m1_unit(source, decode_e4m3(static_cast<std::uint8_t>(raw_scale)),
                           decode_e4m3(static_cast<std::uint8_t>(raw_scale >> 8)), values);
        }
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) put(unit * kOutputs + i, values[i]);
        return;
      }
    }
    put(unit - kCodeUnits + kCodeUnits * (kValuesPerUnit / kUnitValues), source);
  }
};

using Fp8DsMlaUnits = UnitLayout<CodeKind::kE4m3, ScaleKind::kE8m0Byte, kNopeDim, kRopeDim, Fp8DsMlaRow::kGroupValues>;
using Fp8RowUnits = UnitLayout<CodeKind::kE4m3, ScaleKind::kFloat, kNopeDim, kRopeDim, 0>;
using Nvfp4RowUnits = UnitLayout<CodeKind::kE2m1, ScaleKind::kE4m3Pair, kNopeDim, kRopeDim, 0>;
using Bf16RowUnits = UnitLayout<CodeKind::kNone, ScaleKind::kNone, 0, kHeadDim, 0>;
using Mxfp4KeyUnits = UnitLayout<CodeKind::kE2m1, ScaleKind::kE8m0Byte, kIndexHeadDim, 0, kMxfp4GroupValues>;
using Nvfp4KeyUnits = UnitLayout<CodeKind::kE2m1, ScaleKind::kE4m3Pair, kIndexHeadDim, 0, 0>;
using Fp8KeyUnits = UnitLayout<CodeKind::kE4m3, ScaleKind::kFloat, kIndexHeadDim, 0, 0>;
using Bf16KeyUnits = UnitLayout<CodeKind::kNone, ScaleKind::kNone, 0, kIndexHeadDim, 0>;

template <IndexKeyFormat kFormat>
struct KeyUnitsOf;
template <>
struct KeyUnitsOf<IndexKeyFormat::kMxfp4> : Mxfp4KeyUnits {};
template <>
struct KeyUnitsOf<IndexKeyFormat::kNvfp4> : Nvfp4KeyUnits {};
template <>
struct KeyUnitsOf<IndexKeyFormat::kFp8> : Fp8KeyUnits {};
template <>
struct KeyUnitsOf<IndexKeyFormat::kBf16> : Bf16KeyUnits {};

static_assert(Fp8DsMlaUnits::kUnits * kUnitBytes == Fp8DsMlaRow::kDataBytes);
static_assert(Fp8RowUnits::kUnits * kUnitBytes == Fp8Row::kDataBytes);
static_assert(Nvfp4RowUnits::kUnits * kUnitBytes == Nvfp4Row::kDataBytes);
static_assert(Bf16RowUnits::kUnits * kUnitBytes == Bf16Row::kDataBytes);
static_assert(Mxfp4KeyUnits::kUnits * kUnitBytes == Mxfp4Key::kDataBytes);
static_assert(Nvfp4KeyUnits::kUnits * kUnitBytes == Nvfp4Key::kDataBytes);
static_assert(Fp8KeyUnits::kUnits * kUnitBytes == Fp8Key::kDataBytes);
static_assert(Bf16KeyUnits::kUnits * kUnitBytes == Bf16Key::kDataBytes);

// Rows [begin, end) of `rows` to the same rows of `tile`, by kThreads threads. The caller
// synchronizes before and after.
template <class Layout, int kThreads, int kBatch, int kRows>
__device__ inline void decode_rows_as(const RowAddresses<kRows>& rows, int begin, int end, std::byte* tile,
                                      int thread) {
  const int units = (end - begin) * Layout::kUnits;
  for (int first = thread; first < units; first += kBatch * kThreads) {
    uint4 source[kBatch];
    std::uint32_t scale[kBatch];
    // All loads of a batch are in flight before the first is used.
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = first + i * kThreads;
      if (index < units) {
        const RowAddress row = rows.get(begin + index / Layout::kUnits);
        const int unit = index % Layout::kUnits;
        // Not __ldg: beside a lot of shared memory the read-only path has few loads under way.
        source[i] = *(reinterpret_cast<const uint4*>(row.data) + unit);
        scale[i] = unit < Layout::kCodeUnits ? Layout::raw_scale(row, unit) : 0u;
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = first + i * kThreads;
      if (index < units) {
        Layout::store(source[i], scale[i], begin + index / Layout::kUnits, index % Layout::kUnits, tile);
      }
    }
  }
}

template <int kThreads, int kBatch, int kRows>
__device__ inline void decode_rows(RowFormat format, const RowAddresses<kRows>& rows, int begin, int end,
                                   std::byte* tile, int thread) {
  switch (format) {
    case RowFormat::kFp8DsMla:
      return decode_rows_as<Fp8DsMlaUnits, kThreads, kBatch>(rows, begin, end, tile, thread);
    case RowFormat::kFp8Row:
      return decode_rows_as<Fp8RowUnits, kThreads, kBatch>(rows, begin, end, tile, thread);
    case RowFormat::kNvfp4:
      return decode_rows_as<Nvfp4RowUnits, kThreads, kBatch>(rows, begin, end, tile, thread);
    case RowFormat::kBf16:
      return decode_rows_as<Bf16RowUnits, kThreads, kBatch>(rows, begin, end, tile, thread);
  }
}

}  // namespace dsv4rt::cuda
