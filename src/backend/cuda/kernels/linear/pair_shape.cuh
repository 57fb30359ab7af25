// Threads of the pair kernel and where things lie in a block's shared memory.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/linear/pair_params.h"
#include "backend/cuda/kernels/linear/tile_shape.cuh"

namespace dsv4rt::cuda {

inline constexpr int kPairConsumerWarps = kPairBlockTiles * kRowTileWarps;
inline constexpr int kPairThreads = kPairConsumerWarps * 32 + kWarpgroup;  // and the producer's warpgroup

// Shared-memory addresses.
struct PairMemory {
  std::uint32_t stages;
  std::uint32_t buffers;  // [kPairBlockTiles][2][kBufferBytes]: outputs on their way
  std::uint32_t full;     // [kMaxStages] barriers
  std::uint32_t empty;    // [kMaxStages]: consumers of both blocks have released
};

}  // namespace dsv4rt::cuda
