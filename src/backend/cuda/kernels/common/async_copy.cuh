// Bulk copies from global to shared memory that complete on an mbarrier, and barriers across a cluster.
//
// An mbarrier is eight bytes of shared memory; it completes a phase when its arrivals and the bytes that
// were announced to it have come, and phases alternate between parity 0 and 1. Addresses are 32-bit
// shared-memory addresses; the *_cluster functions take addresses from block_address().
#pragma once

#include <cstdint>
#include <cuda.h>

namespace dsv4rt::cuda {

__device__ inline void barrier_init(std::uint32_t barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Ordinary stores to shared memory become visible to matrix instructions and to the copy engine, after a barrier to
// those that other threads start.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
// After the inits, before other threads, other blocks of the cluster or the copy engine use the barriers.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  fence_async_proxy();
}

__device__ inline void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_arrive_several(std::uint32_t barrier, unsigned arrivals) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Arrives when the thread's asynchronous copies of 4 to 16 bytes so far have come; the barrier counts this arrival.
__device__ inline void arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}
// Arrives and announces `bytes` that copies will bring.
__device__ inline void barrier_arrive_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
// Returns when the phase of this parity has completed.
__device__ inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// True in one lane of a warp, all of whose lanes call it; in the same one every time, so it may keep state from one
// call to the next. Copies of a lane that is found so need no loop over the lanes that may be active.
__device__ inline bool elected_lane() {
  std::uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// `bytes` contiguous bytes, all three multiples of 16.
__device__ inline void copy_bulk(std::uint32_t target, const void* source, std::uint32_t bytes, std::uint32_t barrier,
                                 std::uint64_t cache_policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;\n" ::
          "r"(target),
      "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(barrier), "l"(cache_policy)
      : "memory");
}
__device__ inline void copy_bulk(std::uint32_t target, const void* source, std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(target),
      "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(barrier)
      : "memory");
}
// The box of a two-dimensional tensor map whose first element is (column, row); zeros beyond the tensor.
__device__ inline void copy_box(std::uint32_t target, const CUtensorMap* map, int column, int row,
                                std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];\n" ::"r"(
          target),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
// The same box to this address in every block of the cluster that a bit of `blocks` names; the barrier at `barrier`
// in each of them counts the bytes that it gets.
__device__ inline void copy_box_multicast(std::uint32_t target, const CUtensorMap* map, int column, int row,
                                          std::uint32_t barrier, std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;\n" ::"r"(target),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}
// A box of shared memory to (column, row) of a map; what lies beyond the tensor is not written. Copies that a thread
// has committed form groups; fence_async_proxy() comes first in every thread that wrote the box.
__device__ inline void store_box(const CUtensorMap* map, int column, int row, std::uint32_t source) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n" ::"l"(
                   reinterpret_cast<std::uint64_t>(map)),
               "r"(column), "r"(row), "r"(source)
               : "memory");
}
// A box of shared memory to its place in a map of several matrices, as store_box().
__device__ inline void store_box_of_matrix(const CUtensorMap* map, int column, int row, int matrix,
                                           std::uint32_t source) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];\n" ::"l"(
                   reinterpret_cast<std::uint64_t>(map)),
               "r"(column), "r"(row), "r"(matrix), "r"(source)
               : "memory");
}
__device__ inline void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
// Shared memory of all groups but the kPending last has been read.
template <int kPending>
__device__ inline void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}
// All that the thread has committed is written: a later store to the same place is later there, too.
__device__ inline void wait_stores_written() {
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}
__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(reinterpret_cast<std::uint64_t>(map)) : "memory");
}

// L2 policies: data read once, and data that other blocks read too.
__device__ inline std::uint64_t evict_first_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}
// The first of them as a constant, for loads: the compiler would make it anew, in five instructions, for each.
inline constexpr std::uint64_t kEvictFirstPolicy = 0x12f0'0000'0000'0000;
__device__ inline std::uint64_t evict_normal_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}

// Where block `rank` of the cluster has what this block has at `address`.
__device__ inline std::uint32_t block_address(std::uint32_t address, unsigned rank) {
  std::uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
__device__ inline unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
__device__ inline unsigned cluster_blocks() {
  unsigned blocks;
  asm("mov.u32 %0, %%cluster_nctarank;\n" : "=r"(blocks));
  return blocks;
}
// Barrier over all threads of the cluster in two halves. The relaxed arrival orders barrier inits and the life of
// the blocks, not other memory accesses.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;\n" ::: "memory");
}
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;\n" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory");
}

// 16-byte and 8-byte accesses of the block's own shared memory.
__device__ inline float2 load_shared_float2(std::uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ inline float4 load_shared_float4(std::uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ inline uint4 load_shared_uint4(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ inline void store_shared(std::uint32_t address, std::uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(address), "r"(v) : "memory");
}
__device__ inline void store_shared(std::uint32_t address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

// 16 bytes of any block of the cluster.
__device__ inline float4 load_cluster_float4(std::uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Stores 16 bytes in any block of the cluster; `barrier` of the same block counts them as announced bytes.
__device__ inline void store_cluster(std::uint32_t address, float4 v, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];\n" ::"r"(
          address),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}
// The same with 8 bytes.
__device__ inline void store_cluster(std::uint32_t address, float2 v, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];\n" ::"r"(address),
      "f"(v.x), "f"(v.y), "r"(barrier)
      : "memory");
}
// Arrives at a barrier of any block of the cluster, releasing this thread's earlier accesses and those ordered
// before it.
__device__ inline void barrier_arrive_cluster(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// Arrives at a barrier of any block of the cluster after this thread has used up what it read: orders no writes.
__device__ inline void barrier_arrive_readers(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// barrier_wait on an own barrier at which threads of other blocks arrive.
__device__ inline void barrier_wait_cluster(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace dsv4rt::cuda
