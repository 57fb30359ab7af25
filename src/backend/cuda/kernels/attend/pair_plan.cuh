// Attention of 64 heads of a token by a pair of blocks, in one pass over the token's rows, on Hopper.
//
// A block of the pair has one half of the 512 values of queries and rows, decodes only that half and sums it. A score
// is one chain over the values: the first block makes its beginning, sends it, and the second one goes on where it
// ends. The second block turns scores into weights and sends them back. An output is one chain over the rows, in order,
// as in every kernel of attention.
//
//   warps 0..7    scorers, two warpgroups, tiles in turn; in the second block they weigh too
//   warps 8..11   summers: sums of weights times values for the block's 256 columns
//   warps 12..19  producers: packed rows from global memory to BF16 atoms in shared memory
//
// Producers bring what earlier steps have written of the first two tiles, which are the window's, before the kernels in
// front have ended, and while scorers and summers look up where compressed rows lie.
//
// Rows come in tiles of 64, tile t in slot t % 4. A weight is relative to the greatest score of the window's rows,
// which are in the first two tiles (backend/attend_weights.h). Where the sums tell that a head may need a shift, which
// is rare, the pair passes over the rows twice more: for the greatest scores, and for the sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/attend/half_sums.cuh"
#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"
#include "backend/cuda/kernels/common/rope.cuh"

namespace dsv4rt::cuda {

inline constexpr int kPairScorers = 256;
inline constexpr int kPairSummers = 128;
inline constexpr int kPairProducers = 256;
inline constexpr int kPairThreads = kPairScorers + kPairSummers + kPairProducers;
inline constexpr int kPairScorerRegisters = 80;
inline constexpr int kPairSummerRegisters = 160;
inline constexpr int kPairProducerRegisters = 80;
inline constexpr int kPairLaunchRegisters = 65536 / kPairThreads / 8 * 8;
static_assert(kPairScorers * kPairScorerRegisters + kPairSummers * kPairSummerRegisters +
                  kPairProducers * kPairProducerRegisters <=
              kPairThreads * kPairLaunchRegisters);

inline constexpr int kPairSlots = 4;
inline constexpr int kHalfBytes = kSlotBytes / 2;
inline constexpr int kPartialBytes = kTileHeads * kTileRows * 4;

// Barriers by name.
inline constexpr int kPairScorersBarrier = 1;
inline constexpr int kPairWeightsBarrier = 2;  // and 3: of either warpgroup of scorers
inline constexpr int kPairSummersBarrier = 4;

// Passes over the rows.
enum class PairPass : int { kPlain, kGreatest, kShifted };

struct PairItem {
  std::int32_t token;
  std::int32_t first_head;
  std::int32_t rows;
  std::int32_t window;
};

struct PairShared {
  alignas(1024) std::byte q[kHalfBytes];  // at the end outputs pass through it
  alignas(1024) std::byte slot[kPairSlots][kHalfBytes];
  // Weights of a tile, an atom: heads are its rows.
  alignas(1024) std::byte weights[2][kAtomBytes];
  // Second block: beginnings of a tile's scores, four accumulators of a thread of the warpgroup at [i][thread].
  float4 partial[2][kTileRows / 8][128];
  RowSlot place[kMappedWindow + kMappedRows];
  float window_max[2][kTileHeads];  // [warpgroup] greatest scores of window rows
  float greatest[2][kTileHeads];    // [warpgroup] greatest scores of all rows
  float sum[4][kTileHeads];         // sums of weights, over every fourth step of 32 rows
  // [plain pass, shifted one] What outputs are multiplied by; not 0: some head may need a shift.
  float2 factor[2][kTileHeads];
  Rotation rotation[kRotatedPairs];
  PairItem item;
  std::uint64_t full[kPairSlots];
  std::uint64_t empty[kPairSlots];
  std::uint64_t placed;  // places of compressed rows, and the item
  std::uint64_t q_full;
  std::uint64_t partial_full[2];
  std::uint64_t partial_free[2];  // first block: the second one has taken what was sent
  std::uint64_t weights_full[2];
  std::uint64_t weights_free[2];  // second block: both have summed
  std::uint64_t turn[2];          // second block: of either warpgroup of scorers at the matrix unit
  std::uint64_t factors;
  // Greatest scores of either warpgroup are there: of window rows in the first phase, of all rows in the second.
  std::uint64_t maxima;
};
static_assert(sizeof(PairShared) <= 227 * 1024);

}  // namespace dsv4rt::cuda
