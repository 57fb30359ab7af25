// Words of shared memory of any block of a cluster, each where this block has its own.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

__device__ inline std::uint32_t load_cluster(const void* local, int block) {
  std::uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];\n"
               : "=r"(value)
               : "r"(block_address(shared_address(local), static_cast<unsigned>(block)))
               : "memory");
  return value;
}

__device__ inline void store_cluster(const void* local, int block, std::uint32_t value) {
  asm volatile(
      "st.shared::cluster.u32 [%0], %1;\n" ::"r"(block_address(shared_address(local), static_cast<unsigned>(block))),
      "r"(value)
      : "memory");
}

}  // namespace dsv4rt::cuda
