// Values of a cluster's blocks gathered in the shared memory of one of them, without fences: asynchronous stores count
// their bytes at a barrier there.
#pragma once

#include <cstdint>

namespace dsv4rt::cuda {

__device__ inline std::uint32_t cluster_block_rank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster arrive, then wait. After init_gather_barrier(): orders nothing else.
__device__ inline void arrive_at_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed;" ::: "memory");
}
// The same after reads of gathered values, whose place others then overwrite.
__device__ inline void arrive_at_cluster_again() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ inline void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

__device__ inline std::uint32_t own_shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// By one thread; then a barrier of the block, then arrive_at_cluster().
__device__ inline void init_gather_barrier(std::uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(own_shared_address(barrier)) : "memory");
}

// By one thread of the block that gathers, once a phase: it completes when `bytes` have arrived, before or after this.
__device__ inline void expect_gathered(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(own_shared_address(barrier)), "r"(bytes)
               : "memory");
}

// Stores `value` at `place` of block `rank`, 4 bytes at its `barrier`; both are named by their place in the own block.
__device__ inline void gather_value(float* place, std::uint64_t* barrier, int rank, float value) {
  std::uint32_t remote_place;
  std::uint32_t remote_barrier;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote_place) : "r"(own_shared_address(place)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote_barrier) : "r"(own_shared_address(barrier)), "r"(rank));
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(remote_place),
               "r"(__float_as_uint(value)), "r"(remote_barrier)
               : "memory");
}

// In the block that gathers: the values of phase `parity` (0, 1, 0, ...) have arrived and are visible.
__device__ inline void wait_for_gathered(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{\n  .reg .pred done;\nagain:\n"
      "  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "  @!done bra again;\n}" ::"r"(own_shared_address(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace dsv4rt::cuda
