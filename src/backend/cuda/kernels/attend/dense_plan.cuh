// Attention of tokens with many rows, none of them selected, on Hopper: how the work divides.
//
// A block takes 64 heads of a token over one KV split (dense_splits.h), and then the next such item. Weights are
// relative to a power of two (backend/attend_weights.h), so that a split needs no other: it leaves sums of weights and
// of weighted values, each relative to a power of its own, and another kernel scales and adds them in the splits' order
// (dense_combine.cuh). Nothing here depends on the other tokens of the step.
//
//   warps 0..7   two consumer warpgroups: each scores 32 rows of 64, and sums half of the values of all of them
//   warps 8..15  producers: packed rows from global memory to BF16 atoms, four warps for either slot
//
// Units of 32 rows alternate between the two slots, and in a slot between its two halves: while consumers work on one
// half of both, rows are decoded into the other. A unit of a slot holds all values of its rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/attend/dense_splits.h"
#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"

namespace dsv4rt::cuda {

static_assert(DenseSplits::kTile == kTileRows);

inline constexpr int kDenseConsumers = 256;
inline constexpr int kDenseProducers = 256;
inline constexpr int kFullArrivals = kDenseProducers / 2 + kDenseProducers / 64;  // copies of threads, and warps
inline constexpr int kDenseThreads = kDenseConsumers + kDenseProducers;

// Sums of a split: [warpgroup][quad of accumulators][thread of the warpgroup], 16 bytes each, as wgmma leaves them.
inline constexpr int kSumQuads = 32;
inline constexpr int kSplitQuads = 2 * kSumQuads * 128;
static_assert(kSplitQuads * 4 == kTileHeads * kHeadDim);
// Of [warpgroup][head]: what its weights are relative to, as an exponent, and their sum.
inline constexpr int kSplitStates = 2 * kTileHeads;
static_assert(kSplitBytes == kSplitQuads * sizeof(float4) + kSplitStates * sizeof(float2));

// Some of the step's tokens: as many as there is room for sums. Item i is split i / (tokens * groups) of 64 heads of a
// token; tokens with fewer splits, and those of other kernels, leave items empty.
struct DensePass {
  std::int32_t first_token = 0;
  std::int32_t tokens = 0;
  std::int32_t groups = 0;   // groups of 64 heads
  std::int32_t splits = 0;   // most splits that a token can have
  float4* sums = nullptr;    // [tokens, groups, splits, kSplitQuads]
  float2* states = nullptr;  // [tokens, groups, splits, kSplitStates]

  [[nodiscard]] __host__ __device__ std::int32_t items() const { return tokens * groups * splits; }
  // Where an item's sums lie, in splits.
  [[nodiscard]] __device__ std::int64_t place(std::int32_t item) const {
    const std::int32_t each = tokens * groups;
    return std::int64_t{item % each} * splits + item / each;
  }
  [[nodiscard]] __device__ std::int32_t token(std::int32_t item) const {
    return first_token + item % (tokens * groups) / groups;
  }
  [[nodiscard]] __device__ std::int32_t first_head(std::int32_t item) const { return item % groups * kTileHeads; }
};

// What consumers know of an item.
struct DenseItem {
  std::int32_t rows = 0;  // 0: nothing to do
};

inline constexpr int kUnitRows = 32;
inline constexpr int kUnitOffset = kUnitRows * kAtomRowBytes;  // offset of a slot's second half, in every atom
inline constexpr int kUnitProducts = kUnitRows / 16;           // matrix instructions over a unit's rows
inline constexpr int kWeightBytes = kTileHeads * 16 * 2;       // bytes of the weights of one instruction

// Places of rows: RowSlot with flags of their own. A pool has fewer rows.
inline constexpr RowSlot kWindowRow = 0x80000000u;
inline constexpr RowSlot kStagedDenseRow = 0x40000000u;
inline constexpr int kPlaces = 8;  // units of a slot whose rows' places are known

// What producers know of the token whose rows they bring.
struct DenseToken {
  std::int32_t slot;            // slot of its sequence
  std::int32_t count;           // number of its rows
  std::int32_t window;          // rows of the window among them
  std::int32_t first_position;  // first position of the window
  std::int32_t start;           // position of the sequence's first token of the step, and that token
  std::int32_t first_token;
  std::int32_t first_row;  // first row of what would be the slot's first unit ever, if it were the item's
};

struct DenseShared {
  alignas(1024) std::byte q[kTileHeads * kHeadDim * 2];  // atoms
  alignas(1024) std::byte slot[2][kSlotBytes];
  // [slot][16 rows][warp of a warpgroup][lane] in 16 bytes: a register operand of products.
  std::byte weights[2][kUnitProducts * kWeightBytes];
  DenseToken token[kDenseProducers / 32];
  RowSlot place[2][kPlaces][kUnitRows];
  float row_max[2][kTileHeads];  // maxima of a warpgroup's unit
  DenseItem item[2];
  std::uint64_t full[2][2];  // barriers of the slots' halves
  std::uint64_t empty[2][2];
  std::uint64_t item_full[2];
  std::uint64_t item_empty[2];
  std::uint64_t q_full;
};

// 2^exponent for integers up to 0; zero below the normal range.
__device__ inline float power_of_two(float exponent) {
  return exponent >= -126.0f ? __int_as_float((127 + static_cast<int>(exponent)) << 23) : 0.0f;
}

inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kNoPower = -0x1.fffffep+127f;  // before the first score

}  // namespace dsv4rt::cuda
