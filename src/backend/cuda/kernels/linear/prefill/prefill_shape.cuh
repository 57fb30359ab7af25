// The prefill kernel's warps, and where things lie in a block's shared memory.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/linear/prefill/prefill_params.h"
#include "backend/cuda/kernels/linear/shared/items.cuh"

namespace dsv4rt::cuda {

inline constexpr int kPrefillConsumerWarps = kPrefillBlockTiles * kRowTileWarps;

// Shared-memory addresses.
struct PrefillMemory {
  std::uint32_t stages;
  std::uint32_t buffers;  // [kPrefillBlockTiles][2][kBufferBytes]: outputs on their way
  std::uint32_t full;     // [kMaxStages] barriers
  std::uint32_t empty;    // [kMaxStages]: consumers of both blocks have released
};

}  // namespace dsv4rt::cuda
