// How many blocks share a multiprocessor in the kernels whose blocks each have a ring of weights.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/arithmetic.h"

namespace dsv4rt::cuda {

// As few as give all blocks of the grid a place at once, which leaves each the largest ring to fill before its inputs
// come. A tenth more places than blocks: clusters do not cross the groups that multiprocessors come in.
inline int ring_blocks(std::int64_t grid_blocks, int multiprocessors, int most) {
  const std::int64_t places = grid_blocks + grid_blocks / 10;
  return static_cast<int>(std::clamp<std::int64_t>(ceil_div<std::int64_t>(places, multiprocessors), 1, most));
}

}  // namespace dsv4rt::cuda
