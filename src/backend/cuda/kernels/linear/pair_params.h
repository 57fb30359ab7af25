// What the pair kernel takes, and its sizes. Terms: tile_params.h.
#pragma once

#include "backend/cuda/kernels/linear/tile_params.h"

namespace dsv4rt::cuda {

inline constexpr int kMaxPairProblems = 8;

struct PairParams {
  CUtensorMap inputs[kMaxPairProblems];   // [T][K]; boxes of 128 bytes x kPairShareTokens rows, 128-byte swizzle
  CUtensorMap outputs[kMaxPairProblems];  // y where wide_stores, as BF16 or pairs of bytes of FP32: boxes of 128 bytes
                                          // x pair_box_tokens rows
  TileProblem problems[kMaxPairProblems];
  std::int32_t tokens = 0;  // T
  std::int32_t token_tiles = 0;
  std::int32_t problem_count = 0;
  std::int32_t items = 0;
  std::int32_t segments = 1;      // of every problem
  std::int32_t stages = 0;        // of the ring
  std::int32_t stage_bytes = 0;   // a multiple of 1024
  std::int32_t input_offset = 0;  // of the inputs in a stage; weights come first
};
static_assert(sizeof(PairParams) <= 4096, "kernel parameters that every driver takes");

inline constexpr int kPairBlocks = 2;                                // of a cluster
inline constexpr int kPairBlockTiles = 2;                            // row tiles of a block, a consumer warpgroup each
inline constexpr int kPairRowTiles = kPairBlocks * kPairBlockTiles;  // of an item
inline constexpr int kPairTokens = 192;                              // of an item
inline constexpr int kPairShareTokens = kPairTokens / kPairBlocks;   // whose inputs a block fetches for both
inline constexpr int kPairInputBytes = kPairTokens * kStageBytesOfInput;
static_assert(kPairShareTokens * kStageBytesOfInput % 1024 == 0, "whole groups of eight swizzled rows");

// Outputs leave through two buffers of a warpgroup, each of a quarter of the tokens as BF16 or an eighth as FP32.
inline constexpr int kPairBufferBytes = kRowTile * (kPairTokens / 4) * 2;
constexpr int pair_box_tokens(bool float_output) {
  return kPairTokens / (float_output ? 8 : 4);
}

// Of a block's shared memory, besides the ring.
inline constexpr int kPairBarrierBytes = 2 * kMaxStages * 8;
inline constexpr int kPairAlignmentBytes = 1024;
inline constexpr int kPairOtherBytes = kPairBlockTiles * 2 * kPairBufferBytes + kPairBarrierBytes + kPairAlignmentBytes;

}  // namespace dsv4rt::cuda
