// Sizes of the tile kernel that host and device agree on.
#pragma once

#include <algorithm>
#include <array>

#include "backend/cuda/kernels/linear/shared/linear_params.h"

namespace dsv4rt::cuda {

// Slots in which a block of a pair gets the sums of its row tile that the other one has.
inline constexpr int kSumSlots = 2;

// Where parts hand on sums: a ring of quarters of a row tile's.
inline constexpr int kPassSlots = 3;
inline constexpr int kPassChunks = 4;
constexpr int pass_chunk_bytes(int tokens) {
  return kRowTile * tokens * 4 / kPassChunks;
}

// Bytes for each row tile of a block: of its output on its way, or, of a pair of blocks, of a slot.
constexpr int tile_sum_bytes(int tokens, int cluster_blocks) {
  return kRowTile * tokens * (cluster_blocks == 1 ? 2 : 4);
}

// kParts: warpgroups that share a row tile's segments of the block.
template <int kTokens, int kRowTiles, int kParts>
struct TileShape {
  static_assert(kRowTiles == 1 || kParts == 1, "warpgroups are told apart by one of both");
  static constexpr int kConsumers = kRowTiles * kParts * kWarpgroup;
  // Two warpgroups need more registers than an even share: a whole producer warpgroup gives its own away.
  static constexpr bool kMovesRegisters = kRowTiles * kParts > 1;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kThreads = kConsumers + (kMovesRegisters ? kWarpgroup : 32);
  static constexpr int kValues = kTokens / 2;  // accumulators of a thread
  // With more tokens there are no registers for a total of segments: the one segment's sum is stored.
  static constexpr bool kAddsSegments = kTokens <= 192;
  static constexpr int kInputBytes = kTokens * kStageBytesOfInput;
  static constexpr int kBarrierBytes = kParts * 512;
  static_assert((2 * kParts * kMaxStages + 2 * kSumSlots + 4 * kPassSlots) * 8 <= kBarrierBytes);
  // Stages whose weights are fetched before the kernels before have ended. Those of whole rings, all asked for at once,
  // would make the first inputs wait for them.
  static constexpr int kStagesAhead = 2;
  static constexpr int kAlignmentBytes = 1024;
};

// A variant as the host sees it: a compiled kernel and the blocks of its clusters, which share the segments.
struct TileVariant {
  int tokens;          // tokens of an item
  int row_tiles;       // row tiles of a block
  int cluster_blocks;  // one or two, a divisor of the segments
  int parts;           // warpgroups that share a block's segments
  bool adds_segments;
  int input_bytes;  // inputs of a stage
  int other_bytes;  // shared memory of a block besides stages and sums
};

template <int kTokens, int kRowTiles, int kParts = 1>
constexpr TileVariant tile_variant(int cluster_blocks) {
  using Shape = TileShape<kTokens, kRowTiles, kParts>;
  return {.tokens = kTokens,
          .row_tiles = kRowTiles,
          .cluster_blocks = cluster_blocks,
          .parts = kParts,
          .adds_segments = Shape::kAddsSegments,
          .input_bytes = Shape::kInputBytes,
          .other_bytes = Shape::kBarrierBytes + Shape::kAlignmentBytes};
}

// Numbered as LinearVariant does. Steps of 129 to 192 tokens have items of all tokens: two items take up to half as
// long again.
inline constexpr std::array kTileVariants = {
    tile_variant<128, 1, 2>(2), tile_variant<128, 2>(1), tile_variant<128, 2>(2),    tile_variant<160, 1, 2>(2),
    tile_variant<160, 2>(1),    tile_variant<160, 2>(2), tile_variant<192, 1, 2>(2), tile_variant<192, 2>(1),
    tile_variant<192, 2>(2),    tile_variant<256, 2>(1)};

// Of a pair of blocks without parts each adds up one of the row tiles.
static_assert(std::ranges::all_of(kTileVariants, [](const TileVariant& variant) {
  return variant.parts > 1 || variant.cluster_blocks == 1 ||
         (variant.cluster_blocks == 2 && variant.row_tiles == 2 && kSumSlots == 2);
}));

// Parts keep their segments' sums, all but the first part one by one, in registers for two.
static_assert(std::ranges::all_of(kTileVariants, [](const TileVariant& variant) {
  return variant.parts == 1 || kMaxSegments <= 2 * variant.cluster_blocks * variant.parts;
}));

}  // namespace dsv4rt::cuda
