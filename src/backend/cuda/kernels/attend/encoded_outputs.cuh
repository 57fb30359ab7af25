// Outputs of attention as the products behind it read them (AttendParams::encoded): 128 values of a head are a block of
// their own, so that who has them all needs nobody else.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/encode_fragments.cuh"
#include "backend/cuda/kernels/common/transpose_lanes.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kHeadBlocks = kHeadDim / static_cast<int>(kEncodedBlockValues);

__device__ __forceinline__ float* scale_of_block(const EncodedRows& rows, std::int64_t token, int head, int block) {
  return rows.scales + (std::int64_t{head} * kHeadBlocks + block) * rows.scale_stride + token;
}
// Of block `block` of heads `head` and `head` + 8, of which those below `heads` exist.
__device__ __forceinline__ void store_scales(const EncodedRows& rows, int heads, std::int64_t token, int head,
                                             int block, const BlockScales& scales, int lane) {
  if (lane % 4 != 0) return;
  float* to = scale_of_block(rows, token, head, block);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (head + 8 * i < heads) to[std::int64_t{i * 8 * kHeadBlocks} * rows.scale_stride] = scale_of_code(scales.code[i]);
  }
}

// The codes, from registers to where they belong.
__device__ __forceinline__ void store_codes(const EncodedRows& rows, int heads, std::int64_t token, int head, int block,
                                            const BlockPairs& pairs, const BlockScales& scales, int lane) {
  std::uint8_t* codes = rows.codes + (token * heads + head) * kHeadDim + block * kEncodedBlockValues + lane % 4 * 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    constexpr int kUnitTiles = 2;  // tiles of 16 codes: of each of four lanes a lane has such a unit then
#pragma unroll
    for (int first = 0; first < kBlockTiles; first += 4 * kUnitTiles) {
      std::uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t* two = pairs[i] + first + kUnitTiles * j;
        words[j] = encode_scaled_pair(two[0], scales.factor[i]) |
                   std::uint32_t{encode_scaled_pair(two[1], scales.factor[i])} << 16;
      }
      transpose_of_four_lanes(words, lane);
      const uint4 unit = make_uint4(__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410),
                                    __byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632));
      if (head + 8 * i < heads) *reinterpret_cast<uint4*>(codes + i * 8 * kHeadDim + first * 8) = unit;
    }
  }
}

// What zeros become, for blocks [first, end) of `count` heads, by `threads` threads, of which this is one.
__device__ __forceinline__ void write_encoded_zeros(const EncodedRows& rows, int heads, std::int64_t token, int head,
                                                    int count, int first, int end, int thread, int threads) {
  const float scale = scale_of_code(scale_code_of(0));
  constexpr int kUnits = static_cast<int>(kEncodedBlockValues) / 16;
  const int blocks = end - first;
  for (int i = thread; i < count * blocks * kUnits; i += threads) {
    const int own = head + i / (blocks * kUnits);
    const int block = first + i / kUnits % blocks;
    std::uint8_t* codes = rows.codes + (token * heads + own) * kHeadDim + block * kEncodedBlockValues;
    reinterpret_cast<uint4*>(codes)[i % kUnits] = uint4{};
    if (i % kUnits == 0) *scale_of_block(rows, token, own, block) = scale;
  }
}

}  // namespace dsv4rt::cuda
