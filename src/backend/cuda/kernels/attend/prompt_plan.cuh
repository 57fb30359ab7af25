// Attention of 64 query heads of a token whose rows lie decoded (decoded_rows.cuh), by a block whose warpgroups have
// roles of their own, on Hopper: what they share.
//
//   warpgroup 0      scores of all rows, their weights, and what outputs are multiplied by
//   warpgroups 1, 2  sums of values, each of half of the 512 columns, and outputs
//   warpgroup 3      producers: rows from global memory to the slots
//
// Rows come in tiles of 64, in two slots, each in two halves of 256 values that are filled and freed by themselves.
// Tiles are counted over all items of the block: tile t is in slot t % 2, and its weights lie beside that. The scorer
// takes two tiles at a time, an odd last one alone, the second one's products under way while it weighs the first, and
// goes on with the next token while the values of the last one are still summed: between tokens matrix units have work.
//
// Of the queries half of the values are in the scorer's registers, so that the scores of a tile read 96 KB of shared
// memory for 128, and there is room for that half of the next token's.
//
// Orders of sums, weights and what they are relative to are block_plan.cuh's, and so are items (BlockPass) and the
// second round of those that have a head with a shift. The bytes are the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/attend/block_plan.cuh"
#include "backend/cuda/kernels/attend/half_sums.cuh"
#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"
#include "backend/cuda/kernels/common/rope.cuh"

namespace dsv4rt::cuda {

inline constexpr int kRoleThreads = 128;  // a warpgroup's
inline constexpr int kPromptThreads = 4 * kRoleThreads;
inline constexpr int kScorerRegisters = 160;
inline constexpr int kSummerRegisters = 160;  // fewer, and the compiler runs products one by one
inline constexpr int kPromptProducerRegisters = 32;
static_assert(kScorerRegisters + 2 * kSummerRegisters + kPromptProducerRegisters <= 65536 / kRoleThreads);

// Barriers by name, of the threads of a role.
inline constexpr int kScorerBarrier = 1;
inline constexpr int kPromptProducersBarrier = 2;
inline constexpr int kSummersBarrier = 3;  // and 4, of the second half

inline constexpr int kHalves = 2;  // 256 of the 512 values each, of queries, rows and outputs
inline constexpr int kHalfBytes = kHalfAtoms * kAtomBytes;
static_assert(kHalves * kHalfAtoms == kAtoms);

struct PromptItem {
  std::int32_t token;
  std::int32_t first_head;
  std::int32_t rows;            // rows of the item, or ItemRows' 0 and -1
  std::int32_t reference_rows;  // those, the first ones, to whose greatest score weights are relative
  std::int32_t first_tile;      // number of its first tile in the block's count

  [[nodiscard]] __device__ int tiles() const { return (rows + kTileRows - 1) / kTileRows; }
};

struct PromptShared {
  static constexpr int kPlaces = kMappedWindow + kMappedRows;
  // The first half is on its way to the scorer's registers.
  alignas(1024) std::byte q[kHalves][kHalfBytes];
  alignas(1024) std::byte slot[2][kSlotBytes];
  // Weights of the tile in a slot, an atom: heads are its rows. Free when the slot is filled again.
  alignas(1024) std::byte weights[2][kAtomBytes];
  // [item, the next one]: where rows lie, those of the window from the first entry on, compressed rows after them.
  RowSlot place[2][kPlaces];
  float sum[4][kTileHeads];  // the scorer's sums of weights, over every fourth step of 32 rows
  // Of [item, the next one].
  float sink[2][kTileHeads];
  float factor[2][kTileHeads];  // what outputs are multiplied by
  Rotation rotation[2][kRotatedPairs];
  PromptItem item[2];
  std::uint64_t full[2][kHalves];  // barriers of the slots' halves
  std::uint64_t empty[2][kHalves];
  std::uint64_t q_full[kHalves];  // once an item
  std::uint64_t weights_full[2];
  std::uint64_t factor_full[2];
  std::uint64_t item_full[2];  // item, sinks and rotation
  std::uint64_t item_empty[2];
  std::uint64_t first_round;   // all threads: the scorer knows which items have a head with a shift
  std::int32_t first_shifted;  // the item from which on there is a second round, or kNoItem
};
static_assert(sizeof(PromptShared) <= 227 * 1024);

}  // namespace dsv4rt::cuda
