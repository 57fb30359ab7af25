// Tokens that see no more rows than are selected.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"

namespace dsv4rt::cuda {

// All rows that a token sees, where it sees no more than top_k, by the calling one of `threads` threads of every block
// of a cluster.
__device__ inline void select_all(std::int32_t rows, std::int32_t top_k, int thread, int threads,
                                  std::int32_t* chosen) {
  const int step = threads * static_cast<int>(cluster_blocks());
  for (int i = static_cast<int>(cluster_rank()) * threads + thread; i < top_k; i += step) {
    chosen[i] = i < rows ? i : -1;
  }
}

}  // namespace dsv4rt::cuda
