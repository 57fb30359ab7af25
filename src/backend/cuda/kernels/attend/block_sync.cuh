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

// A condition that is the same in all lanes of a warp, so that the compiler knows it: behind a branch that lanes might
// take apart, it keeps nothing in uniform registers.
__device__ inline bool uniform(bool condition) {
  return __shfl_sync(0xffffffffu, static_cast<int>(condition), 0) != 0;
}

// Between blocks: a word that says that what this thread has stored, and others in front of a barrier with it, is
// there.
__device__ inline void store_release(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;\n" ::"l"(__cvta_generic_to_global(to)), "r"(value) : "memory");
}
// Returns when the word is not zero; what was stored before it is there. By whole warps.
__device__ inline void wait_for_flag(const std::uint32_t* flag) {
  std::uint32_t value;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n"
                 : "=r"(value)
                 : "l"(__cvta_generic_to_global(flag))
                 : "memory");
  } while (!__all_sync(0xffffffffu, value != 0));  // each lane for itself, and uniform
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
