// Index keys as the left operand of the matrix instruction, made in registers.
//
// A thread of a warpgroup holds rows r and r + 8 of the warp's sixteen keys, r = lane / 4, and the four lanes
// of a row share its 128 dims. Any assignment of dims to the instruction's columns serves as long as the
// queries follow the same one: each format takes the one in which a lane's columns are the values of whole
// 16-byte reads. column(dim) is that assignment: pairs of dims stay pairs, and column(16 p + i) is column(16 p)
// + column(i) for i < 16.
//
// Operands are FP16 for coded keys, which holds every code times its scale exactly once a power of two common
// to the key is taken out: convert() returns that factor for the key that the lane reports (row r for even
// lanes, row r + 8 for odd ones). BF16 keys are used as they are. read() takes a lane's bytes of a tile, codes
// of all keys first, then their scales; `row` is r of the tile, `lane` is c.
#pragma once

#include <cstdint>
#include <cuda_fp8.h>

#include "dsv4rt/types.h"
#include "layout/index_key.h"

namespace dsv4rt::cuda {

inline constexpr int kTileKeys = 64;                      // rows of the instruction
inline constexpr int kOperandSteps = kIndexHeadDim / 16;  // instructions over the dims

// Columns 16 s + 2 c + {0, 1} and 16 s + 8 + 2 c + {0, 1} of rows r and r + 8, c = lane % 4.
using KeyFragment = std::uint32_t[kOperandSteps][4];

__device__ inline uint4 shared_unit(const std::byte* address) {
  return *reinterpret_cast<const uint4*>(address);
}
__device__ inline std::uint32_t multiply_f16_pair(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
// Two E4M3 codes (low 16 bits); exact, NaN stays NaN.
__device__ inline std::uint32_t e4m3_pair_to_f16(std::uint32_t codes) {
  std::uint32_t values;
  asm("{\n.reg .b16 two;\ncvt.u16.u32 two, %1;\ncvt.rn.f16x2.e4m3x2 %0, two;\n}" : "=r"(values) : "r"(codes));
  return values;
}

// prmt: a selector digit of 8 or more repeats its byte's sign bit.
__device__ inline std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  std::uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

// Upper bytes of FP16 values, the lower byte being zero: what eight E2M1 magnitudes become times 2^shift.
struct E2m1Table {
  std::uint32_t low = 0x3e3c3800U;   // 0, 0.5, 1, 1.5
  std::uint32_t high = 0x46444240U;  // 2, 3, 4, 6

  // -13 <= shift <= 13 keeps all values normal. Smaller shifts give values of that size, 2^-14 or less.
  __device__ static E2m1Table shifted(int shift) {
    const auto steps = static_cast<std::uint32_t>(max(shift, -14));
    return {.low = 0x3e3c3800U + steps * 0x04040400U, .high = 0x46444240U + steps * 0x04040404U};
  }
  // Word j of `out`: codes 2 j and 2 j + 1.
  __device__ void decode(std::uint32_t codes, std::uint32_t (&out)[4]) const {
    const std::uint32_t magnitudes = codes & 0x77777777U;
    const std::uint32_t even = codes << 4;  // the signs of codes 0, 2, 4 and 6 at the tops of bytes
    const std::uint32_t first =
        permute_bytes(low, high, magnitudes) | (permute_bytes(even, codes, 0x5140U) & 0x80808080U);
    const std::uint32_t second =
        permute_bytes(low, high, magnitudes >> 16) | (permute_bytes(even, codes, 0x7362U) & 0x80808080U);
    out[0] = permute_bytes(first, 0, 0x1404U);
    out[1] = permute_bytes(first, 0, 0x3424U);
    out[2] = permute_bytes(second, 0, 0x1404U);
    out[3] = permute_bytes(second, 0, 0x3424U);
  }
};

template <IndexKeyFormat kFormat>
struct KeyOperand;

template <>
struct KeyOperand<IndexKeyFormat::kFp8> {
  using Layout = Fp8Key;
  static constexpr bool kF16 = true;

  // Lane c holds units c and c + 4 of 16 codes.
  static constexpr int column(int dim) {
    const int lane = dim / 16 % 4;
    return 16 * (dim / 64 * 4 + dim % 16 / 4) + 8 * (dim % 4 / 2) + 2 * lane + dim % 2;
  }

  struct Raw {
    uint4 unit[2][2];  // [row r or r + 8][half of the dims]
    float scale;       // of the reported key
  };

  __device__ static Raw read(const std::byte* keys, int row, int lane) {
    const std::byte* const data = keys + row * Layout::kDataBytes + lane * 16;
    Raw raw;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      raw.unit[i / 2][i % 2] = shared_unit(data + i / 2 * 8 * Layout::kDataBytes + i % 2 * 64);
    raw.scale = reinterpret_cast<const float*>(keys + kTileKeys * Layout::kDataBytes)[row + lane % 2 * 8];
    return raw;
  }
  __device__ static float convert(const Raw& raw, int /*lane*/, KeyFragment& a) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const uint4 unit = raw.unit[below][half];
        const std::uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[4 * half + i][below] = e4m3_pair_to_f16(words[i]);
          a[4 * half + i][2 + below] = e4m3_pair_to_f16(words[i] >> 16);
        }
      }
    }
    return raw.scale;
  }
};

// What both E2M1 formats have in common: lane c holds the 32 codes from 32 c on.
struct E2m1Operand {
  static constexpr bool kF16 = true;
  static constexpr int column(int dim) { return 16 * (dim % 32 / 4) + 8 * (dim % 4 / 2) + 2 * (dim / 32) + dim % 2; }

  struct Raw {
    uint4 codes[2];           // rows r and r + 8
    std::uint32_t scales[2];  // as the format reads them
  };
  // Row r (below = 0) or r + 8 of the fragment.
  __device__ static void place(const std::uint32_t (&values)[4], int word, int below, KeyFragment& a) {
    a[2 * word][below] = values[0];
    a[2 * word][2 + below] = values[1];
    a[2 * word + 1][below] = values[2];
    a[2 * word + 1][2 + below] = values[3];
  }
};

template <>
struct KeyOperand<IndexKeyFormat::kMxfp4> : E2m1Operand {
  using Layout = Mxfp4Key;
  static constexpr int kTopShift = 13;  // the largest scale of a key becomes 2^13

  __device__ static Raw read(const std::byte* keys, int row, int lane) {
    const auto* const scales = reinterpret_cast<const std::uint32_t*>(keys + kTileKeys * Layout::kDataBytes) + row;
    const std::byte* const data = keys + row * Layout::kDataBytes + lane * 16;
    return {.codes = {shared_unit(data), shared_unit(data + 8 * Layout::kDataBytes)}, .scales = {scales[0], scales[8]}};
  }
  __device__ static float convert(const Raw& raw, int lane, KeyFragment& a) {
    std::uint32_t top[2];
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const std::uint32_t scales = raw.scales[below];
      const std::uint32_t pairs = __vmaxu2(scales & 0x00ff00ffU, (scales >> 8) & 0x00ff00ffU);
      top[below] = max(pairs & 0xffU, pairs >> 16);
      // Groups more than 2^27 below the key's largest scale are beneath the rounding of the sum.
      const int own = static_cast<int>((scales >> (8 * lane)) & 0xffU);
      const E2m1Table table = E2m1Table::shifted(kTopShift + own - static_cast<int>(top[below]));
      const std::uint32_t words[4] = {raw.codes[below].x, raw.codes[below].y, raw.codes[below].z, raw.codes[below].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t values[4];
        table.decode(words[i], values);
        place(values, i, below, a);
      }
    }
    const std::uint32_t largest = lane % 2 == 0 ? top[0] : top[1];
    // 2^(largest - 127 - 13), in two factors: it may be subnormal. Code 0 belongs to keys of zeros.
    const float scale = __uint_as_float(largest == kE8m0NanCode ? 0x7fc00000U : largest << 23);
    return __fmul_rn(scale, 0x1p-13F);
  }
};

template <>
struct KeyOperand<IndexKeyFormat::kNvfp4> : E2m1Operand {
  using Layout = Nvfp4Key;

  __device__ static Raw read(const std::byte* keys, int row, int lane) {
    const auto* const scales =
        reinterpret_cast<const std::uint16_t*>(keys + kTileKeys * Layout::kDataBytes) + row * 4 + lane;
    const std::byte* const data = keys + row * Layout::kDataBytes + lane * 16;
    return {.codes = {shared_unit(data), shared_unit(data + 8 * Layout::kDataBytes)},
            .scales = {scales[0], scales[32]}};
  }
  __device__ static float convert(const Raw& raw, int /*lane*/, KeyFragment& a) {
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      // An E4M3 scale times an E2M1 value has at most six significant bits and lies in FP16's normal range.
      const std::uint32_t pair = e4m3_pair_to_f16(raw.scales[below]);
      const std::uint32_t words[4] = {raw.codes[below].x, raw.codes[below].y, raw.codes[below].z, raw.codes[below].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t values[4];
        E2m1Table{}.decode(words[i], values);
        const std::uint32_t scale = permute_bytes(pair, pair, i < 2 ? 0x1010U : 0x3232U);
#pragma unroll
        for (std::uint32_t& value : values) value = multiply_f16_pair(value, scale);
        place(values, i, below, a);
      }
    }
    return 1.0F;
  }
};

template <>
struct KeyOperand<IndexKeyFormat::kBf16> {
  using Layout = Bf16Key;
  static constexpr bool kF16 = false;

  // Lane c holds units c, c + 4, c + 8 and c + 12 of eight values.
  static constexpr int column(int dim) {
    return 16 * (dim / 32 * 2 + dim % 8 / 4) + 8 * (dim % 4 / 2) + 2 * (dim / 8 % 4) + dim % 2;
  }

  struct Raw {
    uint4 unit[2][4];  // [row r or r + 8]
  };

  __device__ static Raw read(const std::byte* keys, int row, int lane) {
    Raw raw;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      raw.unit[i / 4][i % 4] = shared_unit(keys + (row + i / 4 * 8) * Layout::kDataBytes + (lane + i % 4 * 4) * 16);
    }
    return raw;
  }
  __device__ static float convert(const Raw& raw, int /*lane*/, KeyFragment& a) {
#pragma unroll
    for (int below = 0; below < 2; ++below) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[2 * i][below] = raw.unit[below][i].x;
        a[2 * i][2 + below] = raw.unit[below][i].y;
        a[2 * i + 1][below] = raw.unit[below][i].z;
        a[2 * i + 1][2 + below] = raw.unit[below][i].w;
      }
    }
    return 1.0F;
  }
};

}  // namespace dsv4rt::cuda
