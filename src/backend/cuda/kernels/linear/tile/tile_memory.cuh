// Where things lie in the shared memory of a block of the tile kernel, and where its segments begin.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/linear/shared/items.cuh"
#include "backend/cuda/kernels/linear/tile/tile_shape.h"

namespace dsv4rt::cuda {

// First stage of a segment.
__device__ inline int segment_stage(const LinearParams& p, const LinearProblem& q, int segment) {
  return segment_block(p, q, segment) * kStagesPerScale;
}

// Shared-memory addresses.
struct TileMemory {
  std::uint32_t stages;
  std::uint32_t sums;   // [kRowTiles][sum_bytes]; as slots of a pair of blocks [kSumSlots][sum_bytes]
  std::uint32_t full;   // [kMaxStages] barriers
  std::uint32_t empty;  // [kMaxStages]
  // Of pairs of blocks, [kSumSlots] each.
  std::uint32_t sent;   // the other block has sent a segment's sums of the own row tile
  std::uint32_t taken;  // the other block has taken what this one sent
  // Of parts, [kPassSlots] each.
  std::uint32_t come;       // the block before has sent its total
  std::uint32_t passed;     // the first part has left its total
  std::uint32_t free_own;   // block 0: the second part has taken that
  std::uint32_t free_next;  // the next block has taken what this one sent
};

}  // namespace dsv4rt::cuda
