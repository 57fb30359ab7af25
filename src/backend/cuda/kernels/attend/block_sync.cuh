// Barriers in shared memory, between warps of a block and between the blocks of a cluster.
//
// An mbarrier completes a phase when its expected arrivals have come; waiters name the parity of the phase
// they wait for. What a thread wrote before its arrival is visible to those who saw the phase complete.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/mma_tile.cuh"

namespace dsv4rt::cuda {

__device__ inline void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes initialised barriers known to the cluster.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

__device__ inline void barrier_arrive(std::uint64_t* barrier, int count = 1) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
// At the same barrier of block `rank` of the cluster.
__device__ inline void barrier_arrive_remote(std::uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

__device__ inline void barrier_wait(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// As barrier_wait, for arrivals from other blocks of the cluster.
__device__ inline void barrier_wait_cluster(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Ordinary stores to shared memory become visible to matrix instructions and bulk copies.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// Of `threads` threads, whole warps; `id` in 1..15.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;\n" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory");
}

// Address of the same shared variable in block `rank` of the cluster.
__device__ inline std::uint32_t remote_address(std::uint32_t address, int rank) {
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
__device__ inline float load_remote(std::uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];\n" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline uint4 load_remote_unit(std::uint32_t address) {
  uint4 value;
  asm volatile("ld.shared::cluster.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
__device__ inline void store_remote(std::uint32_t address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;\n" ::"r"(address), "f"(value) : "memory");
}

// One arrival, and the announcement of `bytes` that copies will bring.
__device__ inline void barrier_expect(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Copies `bytes` (a multiple of 16) to the same place of block `rank` and tells its barrier.
__device__ inline void bulk_copy_remote(const void* from, int bytes, std::uint64_t* barrier, int rank) {
  const std::uint32_t address = shared_address(from);
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                   remote_address(address, rank)),
               "r"(address), "r"(bytes), "r"(remote_address(shared_address(barrier), rank))
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
