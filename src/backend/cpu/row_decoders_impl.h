// Decoders of cache rows and index keys to FP32, over the vectors of one instruction set.
#pragma once

#include "backend/cpu/machine_lanes.h"

namespace dsv4rt::cpu {

template <class Machine>
struct RowDecodersOf : MachineLanes<Machine> {
  using Base = MachineLanes<Machine>;
  using Base::broadcast;
  using Base::kLanes;
  using Base::load;
  using Base::round_bf16;
  using Base::store;
  using typename Base::Float;
  using typename Base::Int;

  [[gnu::always_inline]] static void decode_e4m3(const std::uint8_t* codes, int count, float scale, float* out) {
    for (int i = 0; i < count; i += kLanes) store(out + i, Machine::e4m3(codes + i) * scale);
  }
  [[gnu::always_inline]] static void decode_e2m1(const std::uint8_t* codes, int count, float scale, float* out) {
    for (int i = 0; i < count; i += kLanes) store(out + i, Machine::e2m1(codes + i / 2) * scale);
  }
  [[gnu::always_inline]] static void decode_bf16(const std::uint8_t* bytes, int count, float* out) {
    for (int i = 0; i < count; i += kLanes) store(out + i, Machine::bf16_values(bytes + 2 * i));
  }
  [[gnu::always_inline]] static float e8m0(std::uint8_t code) {
    // 0 is 2^-127 (a subnormal), 255 NaN; every other code is the exponent itself.
    const std::uint32_t bits = code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : std::uint32_t{code} << 23;
    return __builtin_bit_cast(float, bits);
  }
  [[gnu::always_inline]] static float load_float(const std::uint8_t* from) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }

  static void decode_row(RowFormat format, const BlockShape& shape, const std::byte* block, std::int64_t row,
                         float* out) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(block);
    const std::uint8_t* data = bytes + row * shape.data_bytes;
    const std::uint8_t* scales =
        bytes + std::int64_t{shape.rows} * shape.data_bytes + row * std::int64_t{shape.scale_bytes};
    if constexpr (Machine::kDecodes) {
      switch (format) {
        case RowFormat::kFp8DsMla:
          for (int group = 0; group < kNopeDim / 64; ++group) {
            decode_e4m3(data + group * 64, 64, e8m0(scales[group]), out + group * 64);
          }
          return decode_bf16(data + kNopeDim, kRopeDim, out + kNopeDim);
        case RowFormat::kBf16:
          return decode_bf16(data, kHeadDim, out);
        case RowFormat::kFp8Row:
          decode_e4m3(data, kNopeDim, load_float(scales), out);
          for (int i = 0; i < kNopeDim; i += kLanes) store(out + i, round_bf16(load(out + i)));
          return decode_bf16(data + kNopeDim, kRopeDim, out + kNopeDim);
        case RowFormat::kNvfp4:
          break;
      }
    }
    dsv4rt::decode_row(format, shape, block, row, out);
    if (format == RowFormat::kFp8Row) {
      for (int i = 0; i < kNopeDim; i += kLanes) store(out + i, round_bf16(load(out + i)));
    }
  }

  static void decode_key(IndexKeyFormat format, const BlockShape& shape, const std::byte* block, std::int64_t row,
                         float* out) {
    if constexpr (Machine::kDecodes) {
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(block);
      const std::uint8_t* data = bytes + row * shape.data_bytes;
      const std::uint8_t* scales =
          bytes + std::int64_t{shape.rows} * shape.data_bytes + row * std::int64_t{shape.scale_bytes};
      switch (format) {
        case IndexKeyFormat::kMxfp4:
          for (int group = 0; group < kIndexHeadDim / 32; ++group) {
            decode_e2m1(data + group * 16, 32, e8m0(scales[group]), out + group * 32);
          }
          return;
        case IndexKeyFormat::kFp8:
          return decode_e4m3(data, kIndexHeadDim, load_float(scales), out);
        case IndexKeyFormat::kBf16:
          return decode_bf16(data, kIndexHeadDim, out);
        case IndexKeyFormat::kNvfp4:
          break;
      }
    }
    dsv4rt::decode_row(format, shape, block, row, out);
  }
};

}  // namespace dsv4rt::cpu
