// Threads of the prefill kernel and where things lie in a block's shared memory.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/linear/prefill/prefill_params.h"
#include "backend/cuda/kernels/linear/shared/linear_items.cuh"

namespace dsv4rt::cuda {

inline constexpr int kPrefillConsumerWarps = kPrefillBlockTiles * kRowTileWarps;
inline constexpr int kPrefillThreads = kPrefillConsumerWarps * 32 + kWarpgroup;  // and the producer's warpgroup

// Shared-memory addresses.
struct PrefillMemory {
  std::uint32_t stages;
  std::uint32_t buffers;  // [kPrefillBlockTiles][2][kBufferBytes]: outputs on their way
  std::uint32_t full;     // [kMaxStages] barriers
  std::uint32_t empty;    // [kMaxStages]: consumers of both blocks have released
};

}  // namespace dsv4rt::cuda
