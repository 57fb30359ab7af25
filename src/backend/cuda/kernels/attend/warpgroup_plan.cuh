// How one token's attention divides among the blocks of a cluster of four or eight and the warps of a block, on Hopper.
// A pair of blocks divides it otherwise: pair_plan.cuh.
//
// Every block of the cluster scores one KV split against all heads, the cluster agrees on the greatest scores,
// every block turns its scores into weights, then every block sums weights times values over all rows for its
// slice of the 512 values. A score is one chain over the values and an output one chain over the rows, in
// order, whatever the number of blocks: results do not depend on it.
//
//   warps 0..7   two consumer warpgroups: matrix instructions, softmax, output
//   warps 8..15  producers: packed rows from global memory to BF16 atoms in shared memory
//
// With few tokens several of the largest clusters share one, each with some of its heads: what the blocks of a cluster
// send each other then takes less time, and rows, which all of them read, come from the level-2 cache.
//
// Rows pass through two slots of eight atoms (64 rows x 64 values). First the split: a slot holds one tile of 64 rows
// with all values, last tile first, slot i for consumer warpgroup i. Then the values, in pieces of 32 * kBlocks rows of
// the block's slice, each in one half of slot 1.
//
// The queries, what follows them and slot 0 give room to the weights of up to 1152 rows of the token: blocks send
// theirs to all others. Of longer tokens every block keeps its own, and the others read them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"
#include "backend/cuda/kernels/attend/token_rows.cuh"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"
#include "backend/cuda/kernels/common/rope.cuh"
#include "dsv4rt/row_geometry.h"

namespace dsv4rt::cuda {

inline constexpr int kConsumers = 256;
inline constexpr int kProducers = 256;

// Tiles of a split that a consumer warpgroup scores at most: their scores stay in registers.
template <int kBlocks>
constexpr int warpgroup_tiles() {
  constexpr int kMostSteps = ((kMappedWindow + kMappedRows) / kStepRows + kBlocks - 1) / kBlocks;
  return (kMostSteps * kStepRows + 2 * kTileRows - 1) / (2 * kTileRows);
}
static_assert(warpgroup_tiles<4>() == 3 && warpgroup_tiles<8>() == 2);

// Registers of a consumer's and of a producer's threads.
inline constexpr int kConsumerRegisters = 144;
inline constexpr int kProducerRegisters = 112;

// Heads of a token, at most 64. Consumers read it again where they need it: their registers are full of scores.
struct WorkItem {
  std::int32_t token;
  std::int32_t first_head;
  std::int32_t heads;   // heads of the item that exist
  std::int32_t rows;    // rows of the token
  std::int32_t window;  // and those of them, the first ones, that are the window's
};

inline constexpr int kWeightStepBytes = kTileHeads * kStepRows * 2;
inline constexpr int kWarpProductBytes = 16 * 16 * 2;  // weights of 16 heads and 16 rows

template <int kBlocks>
struct WarpgroupShared {
  static constexpr int kGatheredSteps = 36;
  // Weights of other blocks come in chunks of steps, in their order.
  static constexpr int kChunkSteps = 8;
  static constexpr int kChunks = (kGatheredSteps + kChunkSteps - 1) / kChunkSteps;
  // Weights: [warp of a warpgroup][16 rows][lane], in 16 bytes a lane's register operand of a product. A warp's are one
  // copy.
  static constexpr int kWarpWeightBytes = kGatheredSteps * kWeightStepBytes / 4;
  [[nodiscard]] __device__ static int weight_offset(int warp, int product) {
    return warp * kWarpWeightBytes + product * kWarpProductBytes;
  }
  alignas(1024) std::byte q[kTileHeads * kHeadDim * 2];  // atoms; later weights, with what follows
  std::byte more_weights[kGatheredSteps * kWeightStepBytes - sizeof(q) - kSlotBytes];
  alignas(1024) std::byte slot[2][kSlotBytes];  // tiles of rows; at the end the outputs lie here
  // A token's rows: those of the window from the first entry on, compressed rows after them.
  RowSlot place[kMappedWindow + kMappedRows];
  // Greatest scores, of window rows, then of all, for heads 16 w + i and 16 w + i + 8 at [8 w + i]: of the second
  // warpgroup's rows, and of every block's split, written by that block.
  float4 group_max[kTileHeads / 2];
  float4 split_max[kBlocks][kTileHeads / 2];
  float step_sum[kGatheredSteps][kTileHeads];  // sums of p over the steps whose weights lie here
  Rotation rotation[kRotatedPairs];
  WorkItem work;
  std::uint64_t full[2];  // barriers of the slots
  std::uint64_t empty[2];
  std::uint64_t piece_full[2];  // barriers of the halves of slot 1
  std::uint64_t piece_empty[2];
  std::uint64_t q_full;
  std::uint64_t max_ready;
  std::uint64_t weights_ready;
  std::uint64_t weights_here[kChunks];
};
static_assert(sizeof(WarpgroupShared<8>) <= 227 << 10, "shared memory of a block");

// The work of one block for one token.
template <int kBlocks>
struct KvSplit {
  static constexpr int kSliceValues = kHeadDim / kBlocks;
  static constexpr int kPieceTiles = kBlocks / 2;
  static constexpr int kPieceRows = kTileRows * kPieceTiles;
  static constexpr int kPieceBytes = kSlotBytes / 2;

  std::int32_t count;  // rows of the token
  std::int32_t steps;
  std::int32_t rank;

  __device__ KvSplit(std::int32_t rows, int block_rank)
      : count(rows), steps((rows + kStepRows - 1) / kStepRows), rank(block_rank) {}

  // Whether one block has room for the weights of all rows. Blocks then send theirs to all others; otherwise
  // every block keeps its own, and the others read them.
  [[nodiscard]] __device__ bool gathers() const { return steps <= WarpgroupShared<kBlocks>::kGatheredSteps; }
  [[nodiscard]] __device__ std::int32_t own_steps() const { return first_step(rank + 1) - first_step(rank); }
  // Number of the split's first step in the block's own arrays.
  [[nodiscard]] __device__ std::int32_t own_step() const { return gathers() ? first_step(rank) : 0; }

  [[nodiscard]] __device__ std::int32_t first_step(int block) const { return block * steps / kBlocks; }
  // Block that scores `step`.
  [[nodiscard]] __device__ int owner(std::int32_t step) const { return ((step + 1) * kBlocks - 1) / steps; }
  [[nodiscard]] __device__ std::int32_t begin() const { return first_step(rank) * kStepRows; }
  [[nodiscard]] __device__ std::int32_t end() const { return min(count, first_step(rank + 1) * kStepRows); }
  [[nodiscard]] __device__ std::int32_t tiles() const { return (end() - begin() + kTileRows - 1) / kTileRows; }

  // Fills of slot `slot` while the split is scored.
  [[nodiscard]] __device__ int score_fills(int slot) const { return (tiles() + 1 - slot) / 2; }
  [[nodiscard]] __device__ std::int32_t pieces() const { return (count + kPieceRows - 1) / kPieceRows; }
};

}  // namespace dsv4rt::cuda
