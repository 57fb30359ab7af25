// Values of a cluster's blocks gathered in the shared memory of one of them, without fences: asynchronous stores count
// their bytes at a barrier there.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

// Called by one thread; then a barrier of the block, then arrive_with_gather_barrier() and cluster_wait() by all
// threads of all blocks.
__device__ inline void init_gather_barrier(std::uint64_t* barrier) {
  barrier_init(shared_address(barrier), 1);
}

// Orders the barrier's init and nothing else. Before gathered values are overwritten after they were read:
// cluster_arrive().
__device__ inline void arrive_with_gather_barrier() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  cluster_arrive_relaxed();
}

// Called by one thread of the block that gathers, once a phase: it completes when `bytes` have arrived, before or after
// this.
__device__ inline void expect_gathered(std::uint64_t* barrier, std::uint32_t bytes) {
  barrier_arrive_expect(shared_address(barrier), bytes);
}

// Stores `value` at `place` of block `rank`, 4 bytes at its `barrier`; both are named by their place in the own block.
__device__ inline void gather_value(float* place, std::uint64_t* barrier, unsigned rank, float value) {
  const std::uint32_t remote_place = block_address(shared_address(place), rank);
  const std::uint32_t remote_barrier = block_address(shared_address(barrier), rank);
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(remote_place),
               "r"(__float_as_uint(value)), "r"(remote_barrier)
               : "memory");
}

// Returns, in the block that gathers, when the values of phase `parity` (0, 1, 0, ...) have arrived and are visible.
__device__ inline void wait_for_gathered(std::uint64_t* barrier, unsigned parity) {
  barrier_wait_cluster(shared_address(barrier), parity);
}

}  // namespace dsv4rt::cuda
