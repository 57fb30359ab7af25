// The pass of blocks alone (block_plan.cuh) whose last items divide evenly (even_plan.h).
//
// A block that has the head of a token leaves its sums, the greatest scores that weights are relative to and the sums
// of weights, and says so; the block that has the tail goes on from there. The chain over the rows is the same, and so
// are the bytes. Blocks wait for blocks of lower numbers alone, which start before them.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_plan.cuh"
#include "backend/cuda/kernels/attend/dense_plan.cuh"
#include "backend/cuda/kernels/attend/even_plan.h"

namespace dsv4rt::cuda {

// What a token's head leaves, besides its sums.
struct HandedState {
  float row_max[2][kTileHeads];  // indexed as BlockShared's
  float sum[4][kTileHeads];
};

static_assert(kHandedBytes == kSplitQuads * sizeof(float4) + sizeof(HandedState));

struct EvenPass {
  static constexpr bool kSplits = false;
  static constexpr bool kDecoded = false;
  static constexpr bool kHands = true;
  static constexpr bool kEncodes = false;

  BlockPass tokens;
  EvenShares shares;
  float4* sums = nullptr;           // [blocks, kSplitQuads]
  HandedState* states = nullptr;    // [blocks]
  std::uint32_t* handed = nullptr;  // [blocks]: one while the block's head waits for its tail, zero between operations

  // Items are numbered with their part in the lowest bits.
  [[nodiscard]] __device__ int items() const { return tokens.item_count << kPartBits; }
  [[nodiscard]] __device__ int item_of(const EvenShares::Share& share, int block, int i) const {
    const EvenShares::Item item = shares.item(share, block, i);
    return item.index == EvenShares::kNone ? items() : item.index << kPartBits | item.part;
  }
  [[nodiscard]] __device__ static EvenShares::Part part(int item) {
    return static_cast<EvenShares::Part>(item & ((1 << kPartBits) - 1));
  }
  [[nodiscard]] __device__ static bool has_queries_of_last(int /*item*/) { return false; }
  [[nodiscard]] __device__ static int first_again(int i) { return i; }
  [[nodiscard]] __device__ int token(int item) const { return tokens.token(item >> kPartBits); }
  [[nodiscard]] __device__ int first_head(int item) const { return tokens.first_head(item >> kPartBits); }
  [[nodiscard]] __device__ bool takes_all() const { return tokens.takes_all(); }
  [[nodiscard]] __device__ static bool takes(const TokenRows& token_rows) { return BlockPass::takes(token_rows); }

  // `again`: in the second round, in which the tail's block takes all of the token.
  [[nodiscard]] __device__ ItemRows rows(const TokenRows& token_rows, int item, bool again) const {
    const ItemRows all = tokens.rows(token_rows, item >> kPartBits);
    const EvenShares::Part own = part(item);
    if (own == EvenShares::kWhole) return all;
    const std::int32_t tiles = (all.count + kTileRows - 1) / kTileRows;
    const std::int32_t head = all.count <= 0 || again ? 0 : head_tiles(own, tiles) * kTileRows;
    if (own == EvenShares::kTail) return {.begin = head, .count = all.count - head};
    return {.begin = 0, .count = head > 0 ? head : -1};
  }

 private:
  static constexpr int kPartBits = 2;

  // `blocks`: the grid's, read anew, so that what divisions by it begin with is not kept in registers through all
  // tiles.
  [[nodiscard]] __device__ EvenShares shares_of(int blocks) const {
    return {.blocks = blocks, .rounds = shares.rounds, .rest = shares.rest};
  }
  [[nodiscard]] __device__ std::int32_t head_tiles(EvenShares::Part part, std::int32_t tiles) const {
    int block;
    int blocks;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
    return shares_of(blocks).head_tiles(block, part, tiles);
  }
};

}  // namespace dsv4rt::cuda
