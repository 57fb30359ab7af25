// Writing rows in their storage formats. The row lies across threads, thread `quad` holding values
// 4 * quad .. 4 * quad + 3: 128 threads for a row, one warp for an index key. The scale of a group is then
// a maximum over consecutive lanes, and every thread stores its codes with one access.
//
// Byte layouts: src/layout/{fp8_ds_mla,fp8_row,nvfp4_row,bf16_row,index_key}.h. A part's address is
// aligned as its access needs, because blocks are 16-byte aligned and data parts multiples of 16 B.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/common/row_group.cuh"
#include "layout/codec_e2m1.h"
#include "layout/codec_e4m3.h"
#include "layout/codec_e8m0.h"
#include "layout/codec_nvfp4.h"
#include "layout/fp8_ds_mla.h"
#include "layout/fp8_row.h"
#include "layout/index_key.h"
#include "layout/nvfp4_row.h"
#include "layout/row_format.h"

namespace dsv4rt::cuda {

inline constexpr int kRowQuads = kHeadDim / 4;
inline constexpr int kNopeQuads = kNopeDim / 4;
inline constexpr int kKeyQuads = kIndexHeadDim / 4;
static_assert(kKeyQuads == 32, "a warp holds an index key");
static_assert(Fp8DsMlaRow::kGroupValues == 64 && kNvfp4GroupValues == 16 && kMxfp4GroupValues == 32);

// encode_e4m3 of four values by the conversion instruction, the first in the lowest byte. A NaN of either sign
// gives 0x7f.
__device__ inline std::uint32_t e4m3_codes(float v0, float v1, float v2, float v3) {
  std::uint16_t low;
  std::uint16_t high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v1), "f"(v0));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v3), "f"(v2));
  return std::uint32_t{low} | std::uint32_t{high} << 16U;
}

// Four codes, the first in the lowest bits, and the scale byte of their group.
struct QuadCodes {
  std::uint32_t codes;
  std::uint8_t scale;
};

// 1 / decode_e8m0(scale_code), for codes from 1 to 253: the amax rules give no other. Multiplying by it is
// dividing by the scale, exactly.
__device__ inline float e8m0_reciprocal(std::uint8_t scale_code) {
  return __uint_as_float((254U - scale_code) << 23U);
}

template <int kLanes>
__device__ inline QuadCodes e4m3_with_e8m0(const float (&v)[4]) {
  const std::uint8_t scale = e8m0_scale_for_e4m3(__uint_as_float(group_max<kLanes>(finite_amax_bits(v))));
  const float reciprocal = e8m0_reciprocal(scale);
  return {.codes = e4m3_codes(__fmul_rn(v[0], reciprocal), __fmul_rn(v[1], reciprocal), __fmul_rn(v[2], reciprocal),
                              __fmul_rn(v[3], reciprocal)),
          .scale = scale};
}

__device__ inline std::uint32_t e2m1_codes(float v0, float v1, float v2, float v3) {
  return std::uint32_t{encode_e2m1(v0)} | std::uint32_t{encode_e2m1(v1)} << 4U | std::uint32_t{encode_e2m1(v2)} << 8U |
         std::uint32_t{encode_e2m1(v3)} << 12U;
}

__device__ inline QuadCodes mxfp4_codes(const float (&v)[4]) {
  const std::uint32_t amax = group_max<kMxfp4GroupValues / 4>(finite_amax_bits(v));
  const std::uint8_t scale = e8m0_scale_for_e2m1(__uint_as_float(amax));
  const float reciprocal = e8m0_reciprocal(scale);
  return {.codes = e2m1_codes(__fmul_rn(v[0], reciprocal), __fmul_rn(v[1], reciprocal), __fmul_rn(v[2], reciprocal),
                              __fmul_rn(v[3], reciprocal)),
          .scale = scale};
}

__device__ inline QuadCodes nvfp4_codes(const float (&v)[4]) {
  const std::uint32_t amax = group_max<kNvfp4GroupValues / 4>(finite_amax_bits(v));
  const std::uint8_t scale_code = nvfp4_group_scale(__uint_as_float(amax));
  const float scale = decode_e4m3(scale_code);
  QuadCodes out{.codes = 0, .scale = scale_code};
  if (scale > 0.0F) {
    out.codes =
        e2m1_codes(__fdiv_rn(v[0], scale), __fdiv_rn(v[1], scale), __fdiv_rn(v[2], scale), __fdiv_rn(v[3], scale));
  }
  return out;
}

__device__ inline void store_byte_codes(std::byte* at, std::uint32_t codes) {
  *reinterpret_cast<std::uint32_t*>(at) = codes;
}
__device__ inline void store_nibble_codes(std::byte* at, std::uint32_t codes) {
  *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(codes);
}

__device__ inline void store_bf16_quad(void* at, const float (&v)[4]) {
  const auto pair = [](float even, float odd) {
    return std::uint32_t{to_bf16(even).bits} | std::uint32_t{to_bf16(odd).bits} << 16U;
  };
  *static_cast<uint2*>(at) = make_uint2(pair(v[0], v[1]), pair(v[2], v[3]));
}

// The absolute maximum of the row's first kNopeDim values, for the format with one scale a row. `warp_amax`
// [kRowQuads / 32] lies in shared memory and serves one row.
__device__ inline float nope_amax(const float (&v)[4], const RowGroup<kRowQuads>& group, std::uint32_t* warp_amax) {
  const int quad = group.thread;
  const std::uint32_t warp_max = group_max<32>(quad < kNopeQuads ? finite_amax_bits(v) : 0U);
  if (quad % 32 == 0) warp_amax[quad / 32] = warp_max;
  group.sync();
  std::uint32_t amax = 0;
#pragma unroll
  for (int warp = 0; warp < kRowQuads / 32; ++warp) amax = warp_amax[warp] > amax ? warp_amax[warp] : amax;
  return __uint_as_float(amax);
}

// Encodes a row into `block` at `row`, exactly its data and scale bytes. Called by the row's group; v is rounded to
// BF16 already.
__device__ inline void encode_row_quad(RowFormat format, const BlockShape& shape, const float (&v)[4],
                                       const RowGroup<kRowQuads>& group, std::byte* block, std::int64_t row,
                                       std::uint32_t* warp_amax) {
  const int quad = group.thread;
  std::byte* data = block + shape.data_offset(row);
  std::byte* scales = block + shape.scale_offset(row);
  float row_scale = 0.0F;
  if (format == RowFormat::kFp8Row) row_scale = Fp8Row::inv_scale(nope_amax(v, group, warp_amax));

  const bool nope = quad < kNopeQuads;
  std::byte* rope = data + (quad - kNopeQuads) * 8;  // after the codes
  switch (format) {
    case RowFormat::kFp8DsMla: {
      const QuadCodes codes = e4m3_with_e8m0<Fp8DsMlaRow::kGroupValues / 4>(v);
      if (nope) store_byte_codes(data + 4 * quad, codes.codes);
      if (nope && quad % 16 == 0) scales[quad / 16] = std::byte{codes.scale};
      if (quad == kNopeQuads) scales[Fp8DsMlaRow::kGroups] = std::byte{0};
      rope += Fp8DsMlaRow::kRopeOffset;
      break;
    }
    case RowFormat::kFp8Row: {
      const std::uint32_t codes = e4m3_codes(__fdiv_rn(v[0], row_scale), __fdiv_rn(v[1], row_scale),
                                             __fdiv_rn(v[2], row_scale), __fdiv_rn(v[3], row_scale));
      if (nope) store_byte_codes(data + 4 * quad, codes);
      if (quad == kNopeQuads) *reinterpret_cast<float*>(scales) = row_scale;
      rope += Fp8Row::kRopeOffset;
      break;
    }
    case RowFormat::kNvfp4: {
      const QuadCodes codes = nvfp4_codes(v);
      if (nope) store_nibble_codes(data + 2 * quad, codes.codes);
      if (nope && quad % 4 == 0) scales[quad / 4] = std::byte{codes.scale};
      static_assert(Nvfp4Row::kScalePaddingBytes == 4);
      if (quad == kNopeQuads) *reinterpret_cast<std::uint32_t*>(scales + Nvfp4Row::kGroups) = 0;
      rope += Nvfp4Row::kRopeOffset;
      break;
    }
    case RowFormat::kBf16:
      store_bf16_quad(data + 8 * quad, v);
      return;
  }
  if (!nope) store_bf16_quad(rope, v);
}

// The same for an index key. Called by one warp, quad = lane.
__device__ inline void encode_key_quad(IndexKeyFormat format, const BlockShape& shape, const float (&v)[4], int quad,
                                       std::byte* block, std::int64_t row) {
  std::byte* data = block + shape.data_offset(row);
  std::byte* scales = block + shape.scale_offset(row);
  switch (format) {
    case IndexKeyFormat::kMxfp4: {
      const QuadCodes codes = mxfp4_codes(v);
      store_nibble_codes(data + 2 * quad, codes.codes);
      if (quad % 8 == 0) scales[quad / 8] = std::byte{codes.scale};
      return;
    }
    case IndexKeyFormat::kNvfp4: {
      const QuadCodes codes = nvfp4_codes(v);
      store_nibble_codes(data + 2 * quad, codes.codes);
      if (quad % 4 == 0) scales[quad / 4] = std::byte{codes.scale};
      return;
    }
    case IndexKeyFormat::kFp8: {
      const QuadCodes codes = e4m3_with_e8m0<kKeyQuads>(v);
      store_byte_codes(data + 4 * quad, codes.codes);
      if (quad == 0) *reinterpret_cast<float*>(scales) = decode_e8m0(codes.scale);
      return;
    }
    case IndexKeyFormat::kBf16:
      store_bf16_quad(data + 8 * quad, v);
      return;
  }
}

}  // namespace dsv4rt::cuda
