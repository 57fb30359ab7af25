// Groups of threads of a block that work on one row, beside other groups of the same block.
#pragma once

#include "backend/cuda/kernels/common/reduce.cuh"

namespace dsv4rt::cuda {

inline constexpr int kBlockThreads = 256;

// `kThreads` consecutive threads, a multiple of 32; `index` counts the groups of the block of kBlockThreads.
template <int kThreads>
struct RowGroup {
  static_assert(kThreads % 32 == 0 && kBlockThreads % kThreads == 0);
  int index;
  int thread;  // within the group

  __device__ static RowGroup own() {
    // Broadcast, so that the compiler sees that a warp stays together.
    return {.index = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kThreads, 0),
            .thread = static_cast<int>(threadIdx.x) % kThreads};
  }
  // A barrier of the group's threads. Groups of another size have other barriers; 0 is the whole block's.
  __device__ void sync() const {
    if constexpr (kThreads == 32) {
      __syncwarp();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(kBlockThreads / kThreads - 1 + index), "n"(kThreads) : "memory");
    }
  }
};

}  // namespace dsv4rt::cuda
