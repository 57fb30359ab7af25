// What the prefill kernel takes, and its sizes. Terms: tile_params.h.
#pragma once

#include "backend/cuda/kernels/linear/shared/linear_params.h"

namespace dsv4rt::cuda {

inline constexpr int kMaxPrefillProblems = 8;

struct PrefillParams {
  CUtensorMap inputs[kMaxPrefillProblems];   // [T][K]; boxes of 128 bytes x kShareTokens rows, 128-byte swizzle
  CUtensorMap outputs[kMaxPrefillProblems];  // y where wide_stores, as BF16 or pairs of bytes of FP32: boxes of 128
                                             // bytes x box_tokens rows
  LinearProblem problems[kMaxPrefillProblems];
  std::int32_t tokens = 0;  // T
  std::int32_t token_tiles = 0;
  std::int32_t problem_count = 0;
  std::int32_t items = 0;
  std::int32_t segments = 1;      // of every problem
  std::int32_t stages = 0;        // of the ring
  std::int32_t stage_bytes = 0;   // a multiple of 1024
  std::int32_t input_offset = 0;  // of the inputs in a stage; weights come first
};
static_assert(sizeof(PrefillParams) <= 4096, "kernel parameters that every driver takes");

inline constexpr int kPrefillBlocks = 2;      // of a cluster
inline constexpr int kPrefillBlockTiles = 2;  // row tiles of a block, a consumer warpgroup each
inline constexpr int kPrefillRowTiles = kPrefillBlocks * kPrefillBlockTiles;  // of an item

// Of an item of kTokens tokens.
template <int kTokens>
struct PrefillShape {
  static constexpr int kValues = kTokens / 2;                    // accumulators of a thread
  static constexpr int kShareTokens = kTokens / kPrefillBlocks;  // whose inputs a block fetches for both
  static constexpr int kInputBytes = kTokens * kStageBytesOfInput;
  static_assert(kShareTokens * kStageBytesOfInput % 1024 == 0, "whole groups of eight swizzled rows");

  // Outputs leave through two buffers of a warpgroup, each of a quarter of the tokens as BF16 or an eighth as FP32.
  static constexpr int kBufferBytes = kRowTile * (kTokens / 4) * 2;
  static constexpr int box_tokens(bool float_output) { return kTokens / (float_output ? 8 : 4); }

  // Of a block's shared memory, besides the ring.
  static constexpr int kBarrierBytes = 2 * kMaxStages * 8;
  static constexpr int kAlignmentBytes = 1024;
  static constexpr int kOtherBytes = kPrefillBlockTiles * 2 * kBufferBytes + kBarrierBytes + kAlignmentBytes;
};

}  // namespace dsv4rt::cuda
