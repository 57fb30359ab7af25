// Sizes, items and stages of the tile kernel, and where things lie in a block's shared memory.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/linear/shared/linear_params.h"

namespace dsv4rt::cuda {

inline constexpr int kWarpgroup = 128;

// Sizes that host and device agree on.
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

  // Of a row tile; see LinearParams::sum_bytes.
  static constexpr int sum_bytes(int segments, int cluster_blocks) {
    if (cluster_blocks == 1) return kRowTile * kTokens * 2;
    return (segments - segments / cluster_blocks) * (kRowTile / cluster_blocks) * kTokens * 4;
  }
};

struct LinearItem {
  int problem;
  int row_group;
  int token_tile;
};

// Items of a problem go through bands of row groups, in each band token tile by token tile: blocks that run at
// the same time share weights and inputs in L2.
template <class Params>
__device__ __forceinline__ LinearItem linear_item(const Params& p, int index) {
  constexpr int kBand = 16;
  int problem = 0;
  while (problem + 1 < p.problem_count && p.problems[problem + 1].first_item <= index) ++problem;
  const LinearProblem& q = p.problems[problem];
  const int local = index - q.first_item;
  const int band = local / (kBand * p.token_tiles);
  const int within = local - band * kBand * p.token_tiles;
  const int width = min(kBand, q.row_groups - band * kBand);
  return {problem, band * kBand + within % width, within / width};
}

// Items of one cluster: rounds go through the clusters forwards and backwards in turn, so that the one that
// had the largest item of a round gets the smallest of the next.
__device__ inline int item_of_round(int round, int cluster, int clusters) {
  return round * clusters + (round % 2 == 0 ? cluster : clusters - 1 - cluster);
}

// First stage of a segment.
__device__ inline int segment_stage(const LinearParams& p, const LinearProblem& q, int segment) {
  return q.scale_blocks * segment / p.segments * kStagesPerScale;
}

struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Shared-memory addresses.
struct TileMemory {
  std::uint32_t stages;
  std::uint32_t sums;   // [kRowTiles][sum_bytes]
  std::uint32_t full;   // [kMaxStages] barriers
  std::uint32_t empty;  // [kMaxStages]
  std::uint32_t sent;   // [kRowTiles]: all sums of the own rows have come
  std::uint32_t taken;  // [kRowTiles]: all blocks have taken what this block sent
};

}  // namespace dsv4rt::cuda
