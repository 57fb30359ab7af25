// How many blocks share a multiprocessor, and how much of its shared memory each has, in the kernels whose blocks fetch
// rings of weights while the kernel before still runs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/device/device_facts.h"
#include "base/arithmetic.h"

namespace dsv4rt::cuda {

// Returns as few blocks as give all of the grid a place at once, which leaves each the largest ring to fill before its
// inputs come. A tenth more places than blocks: clusters do not cross the groups that multiprocessors come in.
inline int ring_blocks(std::int64_t grid_blocks, int multiprocessors, int most) {
  const std::int64_t places = grid_blocks + grid_blocks / 10;
  return static_cast<int>(std::clamp<std::int64_t>(ceil_div<std::int64_t>(places, multiprocessors), 1, most));
}

// Left free on a multiprocessor: what the driver takes for a block of the kernel before, which rounds or norms inputs
// and has no shared memory of its own. Without it the ring could not be fetched until that block has ended.
inline constexpr int kNeighbourSharedBytes = 1024;

// Dynamic shared memory of each of so many blocks.
inline int ring_block_bytes(const DeviceFacts& device, int blocks) {
  constexpr int kSharedUnit = 128;
  return ((device.sm_shared_bytes - kNeighbourSharedBytes) / blocks - device.reserved_shared_bytes) / kSharedUnit *
         kSharedUnit;
}

}  // namespace dsv4rt::cuda
