// Sizes of the tile kernel that host and device agree on.
#pragma once

#include <array>

#include "backend/cuda/kernels/linear/shared/linear_params.h"

namespace dsv4rt::cuda {

// Bytes of a row tile's output on its way, or of the sums that the blocks of a cluster exchange.
constexpr int tile_sum_bytes(int tokens, int segments, int cluster_blocks) {
  if (cluster_blocks == 1) return kRowTile * tokens * 2;
  return (segments - segments / cluster_blocks) * (kRowTile / cluster_blocks) * tokens * 4;
}

template <int kTokens, int kRowTiles>
struct TileShape {
  static constexpr int kConsumers = kRowTiles * kWarpgroup;
  // Two row tiles need more registers than an even share: a whole producer warpgroup gives its own away.
  static constexpr bool kMovesRegisters = kRowTiles > 1;
  static constexpr int kThreads = kConsumers + (kMovesRegisters ? kWarpgroup : 32);
  static constexpr int kValues = kTokens / 2;  // accumulators of a thread
  static constexpr int kInputBytes = kTokens * kStageBytesOfInput;
  static constexpr int kBarrierBytes = 512;
  static constexpr int kAlignmentBytes = 1024;
};

// A variant as the host sees it: a compiled kernel and the blocks of its clusters, which share the segments.
struct TileVariant {
  int tokens;          // tokens of an item
  int row_tiles;       // row tiles of a block
  int cluster_blocks;  // a divisor of the segments
  int input_bytes;     // inputs of a stage
  int other_bytes;     // shared memory of a block besides stages and sums
};

template <int kTokens, int kRowTiles>
constexpr TileVariant tile_variant(int cluster_blocks) {
  using Shape = TileShape<kTokens, kRowTiles>;
  return {.tokens = kTokens,
          .row_tiles = kRowTiles,
          .cluster_blocks = cluster_blocks,
          .input_bytes = Shape::kInputBytes,
          .other_bytes = Shape::kBarrierBytes + Shape::kAlignmentBytes};
}

// Numbered as LinearVariant does.
inline constexpr std::array kTileVariants = {tile_variant<128, 1>(2), tile_variant<128, 2>(1), tile_variant<128, 2>(2),
                                             tile_variant<128, 2>(4)};

}  // namespace dsv4rt::cuda
