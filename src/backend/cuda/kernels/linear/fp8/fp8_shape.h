// Sizes of the kernel that multiplies E4M3 by E4M3 at many tokens. Terms: linear_params.h. It takes PrefillParams.
#pragma once

#include <array>

#include "backend/cuda/kernels/linear/prefill/prefill_params.h"

namespace dsv4rt::cuda {

inline constexpr int kFp8RowTiles = 2;  // row tiles of an item
inline constexpr int kFp8Outputs = kFp8RowTiles * kRowTile;
inline constexpr int kFp8TileBytes = kRowTile * kStageBytesOfInput;  // a row tile's weights in a stage
inline constexpr int kFp8WeightBytes = kFp8RowTiles * kFp8TileBytes;
inline constexpr int kFp8GroupTokens = 64;  // tokens of a consumer warpgroup, the rows of the matrix instruction

// kTokenGroups: each has 64 of an item's tokens. kRowGroups: consumer warpgroups that share these and divide the item's
// outputs, 1 or 2.
template <int kTokenGroups, int kRowGroups>
struct Fp8Shape {
  static constexpr int kTokens = kTokenGroups * kFp8GroupTokens;
  static constexpr int kGroups = kTokenGroups * kRowGroups;
  static constexpr int kGroupTiles = kFp8RowTiles / kRowGroups;  // row tiles of a warpgroup
  static constexpr int kColumns = kGroupTiles * kRowTile;        // columns of the matrix instruction
  static constexpr int kValues = kColumns / 2;                   // accumulators of a thread
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  // What the threads of consumers and of the producer's warpgroup have: together as many as all were launched with.
  static constexpr int kRegisters = kGroups == 2 ? 232 : 160;
  static constexpr int kProducerRegisters = kGroups == 2 ? 40 : 32;
  static constexpr int kInputBytes = kTokens * kStageBytesOfInput;
  static constexpr int kStageBytes = kInputBytes + kFp8WeightBytes;
  static constexpr int kScaleBytes = kTokens * 4;  // scales of a stage's inputs
  // First stages whose weights are fetched before the kernels in front have ended.
  static constexpr int kStagesAhead = 4;
  // What a warpgroup keeps beside the ring: totals over segments, or outputs on their way.
  static constexpr int kTotalBytes = kFp8GroupTokens * kColumns * 4;
  static constexpr int kOutputBytes = kFp8GroupTokens * kColumns * 2;
  static constexpr int kBarrierBytes = 2 * kMaxStages * 8;
  static constexpr int kAlignmentBytes = 1024;
};

// A compiled variant as the host sees it.
struct Fp8Variant {
  int token_groups;
  int row_groups;
  int tokens;       // tokens of an item
  int stage_bytes;  // weights, inputs and their scales
  int threads;
  int other_bytes;            // shared memory of a block besides the ring
  int segmented_other_bytes;  // the same where there are several segments
};

template <int kTokenGroups, int kRowGroups>
constexpr Fp8Variant fp8_variant() {
  using Shape = Fp8Shape<kTokenGroups, kRowGroups>;
  constexpr int kOther = Shape::kBarrierBytes + Shape::kAlignmentBytes;
  return {.token_groups = kTokenGroups,
          .row_groups = kRowGroups,
          .tokens = Shape::kTokens,
          .stage_bytes = Shape::kStageBytes + Shape::kScaleBytes,
          .threads = Shape::kThreads,
          .other_bytes = kOther + Shape::kGroups * Shape::kOutputBytes,
          .segmented_other_bytes = kOther + Shape::kGroups * Shape::kTotalBytes};
}

// Numbered as LinearVariant does.
inline constexpr std::array kFp8Variants = {fp8_variant<1, 2>(), fp8_variant<2, 1>(), fp8_variant<3, 1>()};

}  // namespace dsv4rt::cuda
