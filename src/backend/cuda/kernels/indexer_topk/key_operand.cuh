// Index keys as the left operand of the matrix instruction, made in registers.
//
// A thread of a warpgroup holds rows r and r + 8 of the warp's sixteen keys, r = lane / 4, and the four lanes
// of a row share its 128 dims. Any assignment of dims to the instruction's columns serves as long as the
// queries follow the same one: each format takes the one in which a lane's columns are the values of whole
// 16-byte reads. column(dim) is that assignment: pair_up() brings the dims of a pair of columns together, of which
// pair i begins with pair_dim(i), and column(16 p + i) is column(16 p) + column(i) for i < 16.
//
// Operands are FP16 for coded keys, which holds every code times its scale exactly once a power of two common
// to the key is taken out: convert() returns that factor for the key that the lane reports (row r for even
// lanes, row r + 8 for odd ones). BF16 keys are used as they are. MXFP4 keys are integers too (integer_keys.cuh).
// read() takes a lane's bytes of a tile, codes of all keys first, then their scales; `row` is r of the tile, `lane` is
// c.
#pragma once

#include <cstdint>
#include <cuda_fp8.h>

#include "backend/cuda/kernels/indexer_topk/index_mma.cuh"
#include "backend/cuda/kernels/indexer_topk/tile_keys.h"
#include "dsv4rt/types.h"
#include "layout/index_key.h"

namespace dsv4rt::cuda {

// A lane's operands of each instruction over the dims. Of 16-bit values columns 16 s + 2 c + {0, 1} and
// 16 s + 8 + 2 c + {0, 1} of rows r and r + 8, c = lane % 4.
template <int kSteps>
using KeyFragment = std::uint32_t[kSteps][4];

// What convert() says of a lane's two keys.
struct ConvertedKeys {
  float factor;           // what scores of the key that the lane reports are multiplied with
  std::int32_t room = 0;  // integers: negative where a key's scales lie too far apart for them
};

// Operands of 16-bit values: instructions take 16 dims.
template <OperandKind kOperandKind>
struct ValueOperand {
  static constexpr OperandKind kKind = kOperandKind;
  using Fragment = KeyFragment<kIndexHeadDim / 16>;
};

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

__device__ inline std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  std::uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

// Bits of `a` where the mask has ones, of `b` elsewhere.
template <std::uint32_t kMask>
__device__ inline std::uint32_t select_bits(std::uint32_t a, std::uint32_t b) {
  std::uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;\n" : "=r"(bits) : "r"(a), "r"(b), "n"(kMask));
  return bits;
}

// Eight E2M1 codes as FP16 times 2^-14: sign, exponent and mantissa bits at the places where FP16 has them, which is
// right for the codes without exponent too, as they become subnormal. Word i of `out`: codes i and i + 4.
__device__ inline void e2m1_to_f16(std::uint32_t codes, std::uint32_t (&out)[4]) {
  constexpr std::uint32_t kMagnitudes = 0x0e0e0e0eU;
  constexpr std::uint32_t kUpperBytes = 0x8e008e00U;
  // Every byte is the upper one of a value, with bits of other codes between its own: codes 0, 2, 4, 6 and 1, 3, 5, 7.
  const std::uint32_t even = select_bits<kMagnitudes>(codes << 1, codes << 4);
  const std::uint32_t odd = select_bits<kMagnitudes>(codes >> 3, codes);
  out[0] = (even << 8) & kUpperBytes;
  out[1] = (odd << 8) & kUpperBytes;
  out[2] = even & kUpperBytes;
  out[3] = odd & kUpperBytes;
}

// Pairs of neighbouring dims, as queries come.
template <OperandKind kOperandKind>
struct NeighbourPairs : ValueOperand<kOperandKind> {
  static constexpr int pair_dim(int pair) { return 2 * pair; }
  __device__ static void pair_up(std::uint32_t (&/*words*/)[8]) {}
};

template <IndexKeyFormat kFormat>
struct KeyOperand;

template <>
struct KeyOperand<IndexKeyFormat::kFp8> : NeighbourPairs<OperandKind::kF16> {
  using Layout = Fp8Key;

  // Lane c holds units c and c + 4 of 16 codes.
  static constexpr int column(int dim) {
    const int lane = dim / 16 % 4;
    return 16 * (dim / 64 * 4 + dim % 16 / 4) + 8 * (dim % 4 / 2) + 2 * lane + dim % 2;
  }

  struct Raw {
    uint4 unit[2][2];  // [row r or r + 8][half of the dims]
    float scale;       // scale of the key whose score the lane reports
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
  __device__ static ConvertedKeys convert(const Raw& raw, int /*lane*/, Fragment& a) {
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
    return {raw.scale};
  }
};

// What both E2M1 formats have in common: lane c holds the 32 codes from 32 c on. Dims d and d + 4 of eight are a pair.
struct E2m1Operand : ValueOperand<OperandKind::kF16> {
  static constexpr int pair_dim(int pair) { return pair / 4 * 8 + pair % 4; }
  static constexpr int column(int dim) {
    return 16 * (dim % 32 / 8 * 2 + dim % 4 / 2) + 8 * (dim % 2) + 2 * (dim / 32) + dim % 8 / 4;
  }
  __device__ static void pair_up(std::uint32_t (&words)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const std::uint32_t four[4] = {words[i], words[i + 1], words[i + 2], words[i + 3]};
      words[i] = permute_bytes(four[0], four[2], 0x5410U);
      words[i + 1] = permute_bytes(four[0], four[2], 0x7632U);
      words[i + 2] = permute_bytes(four[1], four[3], 0x5410U);
      words[i + 3] = permute_bytes(four[1], four[3], 0x7632U);
    }
  }

  struct Raw {
    uint4 codes[2];           // rows r and r + 8
    std::uint32_t scales[2];  // scales of rows r and r + 8 as the format stores them
  };
  // Row r (below = 0) or r + 8 of the fragment; scale[i]: two FP16 factors of codes 16 i to 16 i + 15.
  __device__ static void convert_row(const uint4& codes, const std::uint32_t (&scale)[2], int below, Fragment& a) {
    const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t values[4];
      e2m1_to_f16(words[i], values);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        a[2 * i + pair / 2][pair % 2 * 2 + below] = multiply_f16_pair(values[pair], scale[i / 2]);
      }
    }
  }
};

template <>
struct KeyOperand<IndexKeyFormat::kMxfp4> : E2m1Operand {
  using Layout = Mxfp4Key;

  __device__ static Raw read(const std::byte* keys, int row, int lane) {
    const auto* const scales = reinterpret_cast<const std::uint32_t*>(keys + kTileKeys * Layout::kDataBytes) + row;
    const std::byte* const data = keys + row * Layout::kDataBytes + lane * 16;
    return {.codes = {shared_unit(data), shared_unit(data + 8 * Layout::kDataBytes)}, .scales = {scales[0], scales[8]}};
  }
  __device__ static ConvertedKeys convert(const Raw& raw, int lane, Fragment& a) {
    std::uint32_t top[2];
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const std::uint32_t scales = raw.scales[below];
      const std::uint32_t pairs = __vmaxu2(scales & 0x00ff00ffU, (scales >> 8) & 0x00ff00ffU);
      top[below] = max(pairs & 0xffU, pairs >> 16);
      // The largest scale of a key times FP16's largest power of two, 2^15. What is 2^24 below it loses bits, which
      // are beneath the rounding of the sum.
      const int own = static_cast<int>((scales >> (8 * lane)) & 0xffU);
      const auto exponent = static_cast<std::uint32_t>(max(30 + own - static_cast<int>(top[below]), 1));
      const std::uint32_t factors = exponent * 0x04000400U;
      convert_row(raw.codes[below], {factors, factors}, below, a);
    }
    const std::uint32_t largest = lane % 2 == 0 ? top[0] : top[1];
    // 2^(largest - 127 + 14 - 15), in two factors: it may be subnormal. Code 0, which the encoder does not give,
    // counts as zero.
    const float scale = __uint_as_float(largest == kE8m0NanCode ? 0x7fc00000U : largest << 23);
    return {__fmul_rn(scale, 0.5F)};
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
  __device__ static ConvertedKeys convert(const Raw& raw, int /*lane*/, Fragment& a) {
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      // E4M3 scales times 2^6 lie in FP16's range, and their products with E2M1 values, multiples of 2^-10 below 2^12,
      // do so times 2^(6 - 14).
      constexpr std::uint32_t kTwoTo6 = 0x54005400U;
      const std::uint32_t pair = multiply_f16_pair(e4m3_pair_to_f16(raw.scales[below]), kTwoTo6);
      convert_row(raw.codes[below], {permute_bytes(pair, pair, 0x1010U), permute_bytes(pair, pair, 0x3232U)}, below, a);
    }
    return {0x1p8F};
  }
};

template <>
struct KeyOperand<IndexKeyFormat::kBf16> : NeighbourPairs<OperandKind::kBf16> {
  using Layout = Bf16Key;

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
  __device__ static ConvertedKeys convert(const Raw& raw, int /*lane*/, Fragment& a) {
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
    return {1.0F};
  }
};

}  // namespace dsv4rt::cuda
