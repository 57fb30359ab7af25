// Attention of tokens with many rows, none of them selected, on Hopper: how the work divides.
//
// A block takes 64 heads of a token over one KV split (dense_splits.h), as it takes whole tokens (block_plan.cuh), and
// then the next such item. Weights are relative to a power of two (backend/attend_weights.h), so that a split needs no
// other: it leaves sums of weights and of weighted values, relative to a power of its own, and another kernel scales
// and adds them in the splits' order (dense_combine.cuh). Nothing here depends on the other tokens of the step.
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

  std::int32_t first_token = 0;
  std::int32_t tokens = 0;
  std::int32_t groups = 0;   // groups of 64 heads
  std::int32_t splits = 0;   // most splits that a token can have
  float4* sums = nullptr;    // [tokens, groups, splits, kSplitQuads]
  float2* states = nullptr;  // [tokens, groups, splits, kTileHeads]: exponent of the power, sum of weights

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

  [[nodiscard]] __device__ ItemRows rows(const TokenRows& token_rows, std::int32_t item) const {
    const DenseSplits bounds(token_rows.count);
    const std::int32_t split = item / (tokens * groups);
    if (!token_rows.is_dense() || split >= bounds.count) return {.begin = 0, .count = -1};
    const std::int32_t begin = bounds.first_tile(split) * kTileRows;
    return {.begin = begin, .count = min(token_rows.count, bounds.first_tile(split + 1) * kTileRows) - begin};
  }
  // Whether this pass takes all tokens, and whether it takes one; needs no more than the step's positions.
  [[nodiscard]] __device__ static bool takes_all() { return false; }
  [[nodiscard]] __device__ static bool takes(const TokenRows& token_rows) { return token_rows.is_dense(); }
};

}  // namespace dsv4rt::cuda
