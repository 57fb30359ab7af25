// The items of a launch in the order that blocks take them, and a ring of stages.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/linear/shared/linear_params.h"

namespace dsv4rt::cuda {

struct LinearItem {
  int problem;
  int row_group;
  int token_tile;
};

// Items of a problem go through bands of row groups, in each band token tile by token tile: blocks that run at
// the same time share weights and inputs in L2. Most launches of decode steps have one token tile, and what runs once
// waits for its instructions: they take the short way.
template <class Params>
__device__ __forceinline__ LinearItem linear_item(const Params& p, int index) {
  constexpr int kBand = 16;
  int problem = 0;
  int first = 0;
#pragma unroll
  for (int i = 1; i < kMaxProblems; ++i) {
    if (p.first_item.of[i] > index) continue;
    problem = i;
    first = p.first_item.of[i];
  }
  const int local = index - first;
  if (p.token_tiles == 1) return {problem, local, 0};
  const int band = local / (kBand * p.token_tiles);
  const int within = local - band * kBand * p.token_tiles;
  const int width = min(kBand, p.problems[problem].row_groups - band * kBand);
  return {problem, band * kBand + within % width, within / width};
}

// log2 of a power of two.
__device__ __forceinline__ int exponent_of(int power) {
  return 31 - __clz(power);
}

// First block of 128 inputs of a segment; the number of segments is a power of two.
template <class Params>
__device__ __forceinline__ int segment_block(const Params& p, const LinearProblem& q, int segment) {
  return q.scale_blocks * segment >> exponent_of(p.segments);
}

// Items of one cluster: rounds go through the clusters forwards and backwards in turn, so that the one that
// had the largest item of a round gets the smallest of the next.
__device__ inline int item_of_round(int round, int cluster, int clusters) {
  return round * clusters + (round % 2 == 0 ? cluster : clusters - 1 - cluster);
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

}  // namespace dsv4rt::cuda
