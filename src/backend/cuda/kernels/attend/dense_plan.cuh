// Attention of tokens with many rows, none of them selected, on Hopper: how the work divides.
//
// A block takes 64 heads of a token over one KV split (dense_splits.h), as it takes whole tokens (block_plan.cuh), and
// then the next such item. Weights are relative to a power of two (backend/attend_weights.h), so that a split needs no
// other: it leaves sums of weights and of weighted values, relative to a power of its own, and another kernel adds
// them, those of a run's splits and then those of the runs (dense_combine.cuh). Nothing here depends on the other
// tokens of the step.
//
// Where there are tokens enough a block takes a run of splits, one after the other, and adds each one's sums to those
// that it has left before, in the level-2 cache: by the same operations as the other kernel (split_merge.cuh), to the
// same bytes, but a split's sums are neither kept nor read again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/attend/block_plan.cuh"
#include "backend/cuda/kernels/attend/dense_splits.h"
#include "backend/cuda/kernels/attend/softmax_math.cuh"
#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"

namespace dsv4rt::cuda {

static_assert(DenseSplits::kTile == kTileRows);

// Sums of a split: [warpgroup][quad of accumulators][thread of the warpgroup], 16 bytes each, as wgmma leaves them.
inline constexpr int kSumQuads = 32;
inline constexpr int kSplitQuads = 2 * kSumQuads * 128;
static_assert(kSplitQuads * 4 == kTileHeads * kHeadDim);
static_assert(kSplitBytes == kSplitQuads * sizeof(float4) + kTileHeads * sizeof(float2));

// Some of the step's tokens: as many as there is room for sums. Item i is split i / (tokens * groups) of 64 heads of a
// token; tokens with fewer splits, and those of other kernels, leave items empty.
struct DensePass {
  static constexpr bool kSplits = true;
  static constexpr bool kDecoded = false;
  static constexpr bool kEncodes = false;
  static constexpr bool kHands = false;
  static constexpr bool kRuns = false;

  std::int32_t first_token = 0;
  std::int32_t tokens = 0;
  std::int32_t groups = 0;   // groups of 64 heads
  std::int32_t parts = 0;    // most parts of a token that have sums of their own: splits, or runs of them
  float4* sums = nullptr;    // [tokens, groups, parts, kSplitQuads]
  float2* states = nullptr;  // [tokens, groups, parts, kTileHeads]: exponent of the power, sum of weights

  [[nodiscard]] __host__ __device__ std::int32_t items() const { return tokens * groups * parts; }
  // The block's `i`-th item of `blocks`.
  [[nodiscard]] __device__ static std::int32_t item_of(std::int32_t block, std::int32_t blocks, std::int32_t i) {
    return block + i * blocks;
  }
  // Whether the block's item before has the same queries.
  [[nodiscard]] __device__ static bool has_queries_of_last(std::int32_t /*item*/) { return false; }
  // The first of a block's items to take again because of its `i`-th.
  [[nodiscard]] __device__ static std::int32_t first_again(std::int32_t i) { return i; }
  // Where an item's sums lie, in parts.
  [[nodiscard]] __device__ std::int64_t place(std::int32_t item) const {
    const std::int32_t each = tokens * groups;
    return std::int64_t{item % each} * parts + item / each;
  }
  [[nodiscard]] __device__ std::int32_t token(std::int32_t item) const {
    return first_token + item % (tokens * groups) / groups;
  }
  [[nodiscard]] __device__ std::int32_t first_head(std::int32_t item) const { return item % groups * kTileHeads; }

  [[nodiscard]] __device__ ItemRows rows(const TokenRows& token_rows, std::int32_t item, bool /*again*/) const {
    return split_rows(token_rows, DenseSplits(token_rows.count), item / (tokens * groups));
  }
  // Whether this pass takes all tokens, and whether it takes one; needs no more than the step's positions.
  [[nodiscard]] __device__ static bool takes_all() { return false; }
  [[nodiscard]] __device__ static bool takes(const TokenRows& token_rows) { return token_rows.is_dense(); }

 protected:
  [[nodiscard]] __device__ static ItemRows split_rows(const TokenRows& token_rows, const DenseSplits& bounds,
                                                      std::int32_t split) {
    if (!token_rows.is_dense() || split >= bounds.count) return {.begin = 0, .count = -1};
    const std::int32_t begin = bounds.first_tile(split) * kTileRows;
    return {.begin = begin, .count = min(token_rows.count, bounds.first_tile(split + 1) * kTileRows) - begin};
  }
};

// The same where a block takes `run` splits of 64 heads of a token in a row: parts are runs, and items, `run` for each
// part, their splits. Tokens of shorter runs leave items empty.
struct DenseRunsPass : DensePass {
  static constexpr bool kRuns = true;

  std::int32_t run = 1;  // splits of a part, at most

  [[nodiscard]] __device__ std::int32_t items() const { return DensePass::items() * run; }
  [[nodiscard]] __device__ std::int32_t item_of(std::int32_t block, std::int32_t blocks, std::int32_t i) const {
    return DensePass::item_of(block, blocks, i / run) * run + step(i);
  }
  // Which split of its part an item is.
  [[nodiscard]] __device__ std::int32_t step(std::int32_t item) const { return item % run; }
  [[nodiscard]] __device__ bool has_queries_of_last(std::int32_t item) const { return step(item) != 0; }
  [[nodiscard]] __device__ std::int32_t first_again(std::int32_t i) const { return i - step(i); }
  [[nodiscard]] __device__ std::int64_t place(std::int32_t item) const { return DensePass::place(item / run); }
  [[nodiscard]] __device__ std::int32_t token(std::int32_t item) const { return DensePass::token(item / run); }
  [[nodiscard]] __device__ std::int32_t first_head(std::int32_t item) const {
    return DensePass::first_head(item / run);
  }
  [[nodiscard]] __device__ ItemRows rows(const TokenRows& token_rows, std::int32_t item, bool /*again*/) const {
    const DenseSplits bounds(token_rows.count);
    const std::int32_t own_run = run == 1 ? 1 : bounds.run;
    if (step(item) >= own_run) return {.begin = 0, .count = -1};
    return split_rows(token_rows, bounds, item / run / (tokens * groups) * own_run + step(item));
  }
};

}  // namespace dsv4rt::cuda
