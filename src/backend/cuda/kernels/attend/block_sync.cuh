// What the warps of a block and the blocks of a cluster exchange besides common/async_copy.cuh.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"

namespace dsv4rt::cuda {

// A barrier of `threads` threads, which are whole warps; `id` is in 1..15.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
// A barrier of `threads` threads that tells all of them whether one brings true.
__device__ inline bool named_sync_any(int id, int threads, bool value) {
  int any = 0;
  asm volatile(
      "{\n.reg .pred own, any;\nsetp.ne.b32 own, %3, 0;\nbarrier.cta.red.or.pred any, %1, %2, own;\n"
      "selp.b32 %0, 1, 0, any;\n}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<int>(value))
      : "memory");
  return any != 0;
}

// These read from any block of the cluster; addresses are block_address()'s.
__device__ inline float load_cluster(std::uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];\n" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline uint4 load_cluster_unit(std::uint32_t address) {
  uint4 value;
  asm volatile("ld.shared::cluster.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

// Copies `bytes` (a multiple of 16) to the same place of block `rank` and tells its barrier.
__device__ inline void copy_bulk_cluster(std::uint32_t from, int bytes, std::uint32_t barrier, unsigned rank) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                   block_address(from, rank)),
               "r"(from), "r"(bytes), "r"(block_address(barrier, rank))
               : "memory");
}

// Writes `bytes` (a multiple of 16) of shared memory to 16-byte aligned global memory. The shared memory is
// free after bulk_store_wait() of the same thread.
__device__ inline void bulk_store(void* to, std::uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(__cvta_generic_to_global(to)),
               "r"(from), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_store_wait() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\n" ::: "memory");
}

}  // namespace dsv4rt::cuda
