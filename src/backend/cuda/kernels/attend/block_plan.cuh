// Attention of 64 heads of a token by one block, in one pass over the token's rows, or over a KV split of them
// (dense_plan.cuh), on Hopper.
//
//   warps 0..7   two consumer warpgroups: matrix instructions, weights, outputs
//   warps 8..15  producers: packed rows from global memory to BF16 atoms in shared memory, or, of splits in prompts,
//                rows that were decoded before (decoded_rows.cuh)
//
// Rows come in tiles of 64, in two slots; tile t is in slot t % 2. Warpgroup t % 2 scores a tile and weighs its rows.
// Both sum its values, each for half of the 512 columns, tile after tile: an output is one chain over the rows, in
// order, as in every kernel of attention. The even warpgroup is half a pair of tiles ahead: the scores of its next tile
// follow the odd tile's values in the matrix units without a gap. Outputs leave through the slot of the last tile.
//
// In front of the wait for other kernels consumers may rehearse (kRehearsal).
//
// Queries that come as they were projected (AttendParams::query_eps) the consumers norm and turn where they lie, eight
// heads a warp, before the first scores.
//
// A weight is relative to the greatest score of the window's rows, which are in the first two tiles: it does not wait
// for the rest (backend/attend_weights.h). Heads that need a shift are rare: where their sums tell, the block goes over
// its items again, from the first one of these on, and passes over the rows twice, first for the shifts. Of a split
// weights are relative to a power close to the greatest score of its first two tiles, or of all where that lies far
// above.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/attend/even_plan.h"
#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/attend/plan.h"
#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"
#include "backend/cuda/kernels/common/rope.cuh"

namespace dsv4rt::cuda {

inline constexpr int kBlockConsumers = 256;
inline constexpr int kBlockProducers = 256;
inline constexpr int kBlockThreads = kBlockConsumers + kBlockProducers;
// Producers that decode have most of a row in registers. Where they do not, consumers keep weights.
template <bool kDecoded>
inline constexpr int kBlockProducerRegisters = kDecoded ? 40 : 64;
template <bool kDecoded>
inline constexpr int kBlockConsumerRegisters = kDecoded ? 216 : 192;
template <bool kDecoded>
inline constexpr int kBlockRegisters =
    kBlockConsumerRegisters<kDecoded>* kBlockConsumers + kBlockProducerRegisters<kDecoded>* kBlockProducers;
static_assert(kBlockRegisters<false> <= 65536 && kBlockRegisters<true> <= 65536);

// Barriers by name: of roles; of what some store, which arrive, and others wait for.
inline constexpr int kBlockProducersBarrier = 1;
inline constexpr int kEvenBarrier = 2;  // the even warpgroup
inline constexpr int kOddBarrier = 3;   // the odd one
inline constexpr int kEvenWeightsBarrier = 4;
inline constexpr int kOddWeightsBarrier = 5;
inline constexpr int kQueriesBarrier = 6;  // all consumers: queries are normed, or sums stored that are handed on

// Rows of a token that an item has: [begin, begin + count). None: 0 if the token has none, which gives zeros, -1 if
// another kernel takes it.
struct ItemRows {
  std::int32_t begin;
  std::int32_t count;
};

// What a launch takes of the step: items are 64 heads of a token each; item i is group i % groups of token i / groups.
struct BlockPass {
  static constexpr bool kSplits = false;   // whether items are splits of tokens
  static constexpr bool kDecoded = false;  // whether rows come decoded (decoded_rows.cuh)
  static constexpr bool kHands = false;    // whether blocks hand tokens on (even_pass.cuh)
  static constexpr bool kEncodes = false;  // whether outputs leave encoded (encoded_outputs.cuh)

  std::int32_t item_count;
  std::int32_t groups;  // groups of 64 heads
  bool dense;           // whether some of the tokens may be the dense kernel's

  [[nodiscard]] __device__ int items() const { return item_count; }
  // The block's `i`-th item of `blocks`.
  [[nodiscard]] __device__ static int item_of(int block, int blocks, int i) { return block + i * blocks; }
  // Whether the block's item before has the same queries.
  [[nodiscard]] __device__ static bool has_queries_of_last(int /*item*/) { return false; }
  // The first of a block's items to take again because of its `i`-th.
  [[nodiscard]] __device__ static int first_again(int i) { return i; }
  [[nodiscard]] __device__ int token(int item) const { return item / groups; }
  [[nodiscard]] __device__ int first_head(int item) const { return item % groups * kTileHeads; }

  [[nodiscard]] __device__ ItemRows rows(const TokenRows& token_rows, int /*item*/, bool /*again*/ = false) const {
    return {.begin = 0, .count = token_rows.is_dense() ? -1 : token_rows.count};
  }
  // Whether this pass takes all tokens, and whether it takes one; needs no more than the step's positions.
  [[nodiscard]] __device__ bool takes_all() const { return !dense; }
  [[nodiscard]] __device__ static bool takes(const TokenRows& token_rows) { return !token_rows.is_dense(); }
};

// The same items for AttendParams::encoded: a kernel of its own, since that one's registers are full.
struct EncodedBlockPass : BlockPass {
  static constexpr bool kEncodes = true;
};

inline BlockPass block_pass(const WarpgroupPlan& plan) {
  return {
      .item_count = static_cast<std::int32_t>(plan.tokens * plan.groups), .groups = plan.groups, .dense = plan.dense};
}

// Where the rehearsal has its item: in layers whose rows are selected, consumers take one of whatever lies in shared
// memory before the first one, while they would wait, and leave nothing of it. The instructions of scores, weights and
// values are then there when rows come; where other kernels have run since the layer before, each would come when it is
// needed, from memory, to all multiprocessors at once and amid all rows. Selection leaves some multiprocessors early,
// whose blocks bring the instructions to the level-2 cache for the others; in layers without it all blocks begin at
// once, shortly before their turn, and would rehearse until long after it.
inline constexpr int kRehearsal = 2;
inline constexpr int kRehearsedRows = 4 * kTileRows;  // enough for either warpgroup's loop

struct BlockItem {
  std::int32_t token;
  std::int32_t first_head;
  std::int32_t rows;            // rows of the item, or ItemRows' 0 and -1
  std::int32_t reference_rows;  // those, the first ones, to whose greatest score weights are relative
  std::int32_t filled[2];       // fills of the slots before it
};

struct BlockShared {
  static constexpr int kPlaces = kMappedWindow + kMappedRows;
  alignas(1024) std::byte q[kAtoms * kAtomBytes];
  alignas(1024) std::byte slot[2][kSlotBytes];
  // Weights of the tile in a slot, an atom: heads are its rows.
  alignas(1024) std::byte weights[2][kAtomBytes];
  // [item, the next one]: where rows lie, those of the window from the first entry on, compressed rows after them.
  RowSlot place[2][kPlaces];
  // Of [item, the next one] and of the rehearsal (kRehearsal).
  float row_max[3][2][kTileHeads];  // [item][warpgroup] greatest scores that weights are relative to
  float sum[3][4][kTileHeads];      // [item] sums of weights, over every fourth step of 32 rows
  Rotation rotation[2][kRotatedPairs];
  BlockItem item[3];
  std::uint64_t full[2];  // barriers of the slots
  std::uint64_t empty[2];
  std::uint64_t q_full;
  std::uint64_t meeting;       // consumers: an item's row_max of both warpgroups are there, then its sums
  std::uint64_t first_round;   // all threads: consumers know which items have a head with a shift
  std::uint64_t item_full[2];  // item and rotation
  std::uint64_t item_empty[2];
  std::int32_t first_shifted;           // the item from which on there is a second round, or kNoItem
  alignas(16) EvenShares::Share share;  // what the block has, where tokens are handed on (even_pass.cuh)
  bool resumes[2];                  // [item, the next one] whether the item is the tail of a token that is handed on
  bool hands_on[2];                 // and whether it is the head of one
  float2 run_state[2][kTileHeads];  // [warpgroup] power and sum of weights of a run of splits (dense_plan.cuh)
};
// Where row `row` of a token lies, by BlockShared::place of its item; of a split's tokens rows of the window alone.
__device__ inline RowSlot place_of_row(const RowSlot* place, std::int32_t window, std::int32_t row) {
  return place[row < window ? row : kMappedWindow - window + row];
}
static_assert(kTileHeads * kTileRows * 2 == kAtomBytes);
static_assert(sizeof(BlockShared) <= 227 * 1024);
inline constexpr std::int32_t kNoItem = INT_MAX;

}  // namespace dsv4rt::cuda
