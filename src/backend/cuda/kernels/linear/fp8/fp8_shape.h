// Sizes of the kernel that multiplies E4M3 by E4M3, and BF16 by BF16, at many tokens. Terms: linear_params.h. It takes
// PrefillParams.
#pragma once

#include <array>

#include "backend/cuda/kernels/linear/prefill/prefill_params.h"

namespace dsv4rt::cuda {

inline constexpr int kFp8TileBytes = kRowTile * kStageBytesOfInput;  // a row tile's weights in a stage
inline constexpr int kFp8GroupTokens = 64;  // tokens of a consumer warpgroup, the rows of the matrix instruction
// Where the blocks of a cluster share segments: slots in which a warpgroup gets the sums of the other block's.
inline constexpr int kFp8SumSlots = 2;

// kItemTokens: of an item; each 64 are a consumer warpgroup's. kTiles: row tiles of an item, 1 or 2. kBlocks: blocks of
// a cluster, which share an item's segments, 1 or 2.
template <int kItemTokens, int kTiles, int kBlocks = 1>
struct Fp8Shape {
  static constexpr int kTokens = kItemTokens;
  static constexpr int kRowTiles = kTiles;
  static constexpr int kClusterBlocks = kBlocks;
  static constexpr bool kSharesSegments = kBlocks > 1;
  static constexpr int kGroups = kTokens / kFp8GroupTokens;
  static constexpr int kColumns = kTiles * kRowTile;  // columns of the matrix instruction
  static constexpr int kValues = kColumns / 2;        // accumulators of a thread
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  // What the threads of consumers and of the producer's warpgroup have: together as many as all were launched with.
  static constexpr int kRegisters = kGroups == 2 ? 232 : 160;
  static constexpr int kProducerRegisters = kGroups == 2 ? 40 : 32;
  // Whether there are enough for totals over segments beside the products and sums of one.
  static constexpr bool kKeepsTotals = 3 * kValues + 40 <= kRegisters;
  static_assert(!kSharesSegments || kKeepsTotals);
  // Whether weights may be BF16: their products' accumulators take part of the registers that totals leave.
  static constexpr bool kTakesValues = kKeepsTotals;
  // Whether items may have one row tile of two (LinearPlan::single_tiles).
  static constexpr bool kTakesSingles = kTiles == 2 && kBlocks == 1 && kKeepsTotals;
  static constexpr int kInputBytes = kTokens * kStageBytesOfInput;
  static constexpr int kWeightBytes = kTiles * kFp8TileBytes;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kScaleBytes = kTokens * 4;  // scales of a stage's inputs
  // First stages whose weights are fetched before the kernels in front have ended.
  static constexpr int kStagesAhead = 4;
  // Beside the ring: a warpgroup's totals, or sums of the other block, and outputs on their way.
  static constexpr int kTotalBytes = kFp8GroupTokens * kColumns * 4;
  static constexpr int kOutputBytes = kFp8GroupTokens * kColumns * 2;
  // Tokens are dealt to the blocks of a cluster by warpgroups, and each adds up its own: block 0 has the even ones.
  static constexpr int kOwnedGroups = kSharesSegments ? (kGroups + 1) / 2 : kGroups;
  static constexpr int group_bytes(bool several_segments) {
    if (kSharesSegments) return kFp8SumSlots * kTotalBytes;
    return several_segments && !kKeepsTotals ? kTotalBytes : kOutputBytes;
  }
  static constexpr int buffer_bytes(bool several_segments) { return kOwnedGroups * group_bytes(several_segments); }
  static constexpr int kSumBarriers = kSharesSegments ? 2 * kGroups * kFp8SumSlots : 0;
  static constexpr int kBarrierBytes = (2 * kMaxStages + kSumBarriers) * 8;
};

// A compiled variant as the host sees it.
struct Fp8Variant {
  int tokens;          // tokens of an item
  int row_tiles;       // row tiles of an item
  int cluster_blocks;  // blocks that share an item's segments
  bool takes_values;   // weights may be BF16, of all problems or some
  bool takes_singles;  // items may have one row tile of two
  bool encodes;        // outputs of a warpgroup are whole blocks, which it may leave as codes
  int weight_bytes;    // weights of a stage
  int stage_bytes;     // weights, inputs and their scales
  int threads;
  int other_bytes;            // shared memory of a block besides the ring
  int segmented_other_bytes;  // the same where there are several segments
};

template <class Shape>
constexpr Fp8Variant fp8_variant() {
  return {.tokens = Shape::kTokens,
          .row_tiles = Shape::kRowTiles,
          .cluster_blocks = Shape::kClusterBlocks,
          .takes_values = Shape::kTakesValues,
          .takes_singles = Shape::kTakesSingles,
          .encodes = Shape::kColumns == kScaleBlockInputs,
          .weight_bytes = Shape::kWeightBytes,
          .stage_bytes = Shape::kStageBytes + Shape::kScaleBytes,
          .threads = Shape::kThreads,
          .other_bytes = Shape::kBarrierBytes + Shape::buffer_bytes(false),
          .segmented_other_bytes = Shape::kBarrierBytes + Shape::buffer_bytes(true)};
}

// What is compiled; numbered as LinearVariant does.
template <template <class...> class List>
using Fp8Shapes = List<Fp8Shape<128, 1>, Fp8Shape<128, 1, 2>, Fp8Shape<128, 2>, Fp8Shape<128, 2, 2>, Fp8Shape<192, 1>,
                       Fp8Shape<192, 1, 2>, Fp8Shape<192, 2>>;

template <class... Shapes>
struct Fp8VariantTable {
  static constexpr std::array kOf = {fp8_variant<Shapes>()...};
};
inline constexpr auto kFp8Variants = Fp8Shapes<Fp8VariantTable>::kOf;

}  // namespace dsv4rt::cuda
