// How runs of tokens share decoded rows, on Hopper.
//
// Neighbouring tokens of a sequence have all window rows but one in common, and their compressed rows. A block takes 64
// heads of consecutive tokens of a step. It cuts them into runs, each of one sequence, decodes the compressed rows of a
// run's last token and the window rows of all its tokens to BF16 in shared memory, once, and then attends to them token
// by token: a token's window is 128 rows of them, which start one row later for each token. Rows that a token does not
// have (later compressed ones; before position 127 later window ones) have a weight of zero. That hides no NaN and no
// infinity: a run in whose rows there is one is taken token by token, without rows beyond the token's own.
//
//   warpgroups 0, 1  consumers: each takes every second token of the block, alone. Scores of all rows, weights, outputs
//                    of 128 values at a time; scores and weights stay in registers. Both decode the rows of a run.
//   warpgroup 2      a thread that copies queries, 64 values of 64 heads at a time, to a ring. The ring runs
//                    through all tokens of the block; consumers take turns at it. Where queries get their norm here,
//                    a token's pass through it twice, as it has no room for a whole head: for the sums of squares, and
//                    for scores, normed and turned where they lie.
//
// Scores are chains over the values, outputs chains over the token's rows, 16 at a time from its first row on, and
// weights are summed by 32 rows, as in warpgroup_plan.cuh: results are equal bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/attend/run_limits.h"
#include "backend/cuda/kernels/attend/run_room.cuh"
#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"

namespace dsv4rt::cuda {

inline constexpr int kRunGroups = 2;  // consumer warpgroups
inline constexpr int kRunConsumers = 128 * kRunGroups;
inline constexpr int kRunThreads = kRunConsumers + 128;
// Registers of a consumer's and of the other threads.
inline constexpr int kRunConsumerRegisters = 240;
inline constexpr int kRunProducerRegisters = 24;
// Barriers by name: where consumers meet, and from the second on where each warpgroup of them does.
inline constexpr int kRunBarrier = 1;
inline constexpr int kRunGroupBarrier = 2;

// How many times 64 of its values a token passes through the ring. kNorms: whether queries get their norm here.
template <bool kNorms>
inline constexpr int kRunTokenAtoms = kNorms ? 2 * kAtoms : kAtoms;

// kCompresses: whether tokens have compressed rows.
template <bool kCompresses>
struct RunShape {
  static constexpr int kSlots = kCompresses ? 3 : 6;                            // the ring's, for queries
  static constexpr int kRows = kCompresses ? 200 : 176;                         // the room's
  static_assert(kRows >= kRunWindow + (kCompresses ? kRunCompressedRows : 0));  // a token's at least
  using Room = RowRoom<kRows>;
};

template <bool kCompresses>
struct RunShared {
  static constexpr int kSlots = RunShape<kCompresses>::kSlots;
  alignas(1024) std::byte queries[kSlots][kAtomBytes];
  alignas(1024) std::byte rows[RunShape<kCompresses>::Room::kBytes];  // compressed ones first
  std::uint64_t full[kSlots];                                         // barriers of the ring
  std::uint64_t empty[kSlots];
  std::uint64_t turn[kRunGroups];  // whether a warpgroup may take the ring's next queries
};
static_assert(sizeof(RunShared<false>) <= 232448 && sizeof(RunShared<true>) <= 232448);  // what a block can have

// What a launch takes of the step.
struct RunPass {
  std::int32_t tokens;
  std::int32_t block_tokens;  // a block's
  std::int32_t groups;        // groups of 64 heads
};

// Tokens of a block: 64 heads of the tokens [begin, end) of the step.
struct RunBlock {
  std::int32_t begin;
  std::int32_t end;
  std::int32_t first_head;

  __device__ explicit RunBlock(const RunPass& pass)
      : begin(static_cast<std::int32_t>(blockIdx.x) / pass.groups * pass.block_tokens),
        end(min(pass.tokens, begin + pass.block_tokens)),
        first_head(static_cast<std::int32_t>(blockIdx.x) % pass.groups * kRunHeads) {}
};

}  // namespace dsv4rt::cuda
