// Where a thread that keeps a ring of stages full is in its items.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/linear/shared/linear_params.h"

namespace dsv4rt::cuda {

// The stages that a block fetches, item after item. To go on takes a few instructions: the warps that multiply wait for
// every one more of this thread.
struct ItemStages {
  int round = 0;
  int left = 0;                        // stages in a row, this one included; 0 after the last item
  const std::byte* weights = nullptr;  // the next stage, in the block's first row tile
  std::uint32_t second_tile = 0;       // bytes from there to the second row tile
  std::uint32_t tile_bytes = 0;
  int tiles = 0;  // row tiles of the block that the problem has
  const CUtensorMap* inputs = nullptr;
  int column = 0;
  int token = 0;  // the first that this block fetches

  // Goes on to the next stage of those in a row; false behind their last one.
  __device__ __forceinline__ bool next_stage() {
    weights += tile_bytes;
    column += kStageInputs;
    return --left > 0;
  }
};

}  // namespace dsv4rt::cuda
