// Linear layers on Hopper's wgmma: weights are the A operand (64 outputs a warpgroup), tokens the B
// operand (kTokens columns), both read from shared memory, where a producer warp keeps a ring of stages
// full. Weights do not depend on earlier kernels: the producer fetches the first ring of them while the
// previous kernel of the stream still runs.
//
// The order of accumulation is that of linear_params.h. Two blocks of a cluster share the segments of an item. With two
// row tiles they take them by turns, and each adds up one of the row tiles. With one, two parts of a block share its
// segments: warpgroups with a ring each, so that one widens weights while the other multiplies. They hand on the total
// of the segments so far, from part to part and block to block.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/linear/tile/tile_consumer.cuh"
#include "backend/cuda/kernels/linear/tile/tile_producer.cuh"

namespace dsv4rt::cuda {

// Grid: any number of clusters of one block or two. Dynamic shared memory: tile_shared_bytes.
template <int kTokens, int kRowTiles, int kParts>
__global__ __launch_bounds__(TileShape<kTokens, kRowTiles, kParts>::kThreads,
                             1) void linear_tile_kernel(const __grid_constant__ LinearParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = TileShape<kTokens, kRowTiles, kParts>;
  allow_dependents();
  extern __shared__ char tile_memory[];
  const std::uint32_t base = shared_address(tile_memory);
  TileMemory m;
  m.stages = (base + 1023U) & ~1023U;
  m.sums = m.stages + kParts * p.stages * p.stage_bytes;
  m.full = m.sums + kRowTiles * p.sum_bytes;
  m.empty = m.full + kParts * kMaxStages * 8;
  m.sent = m.empty + kParts * kMaxStages * 8;
  m.taken = m.sent + kSumSlots * 8;
  m.come = m.taken + kSumSlots * 8;
  m.passed = m.come + kPassSlots * 8;
  m.free_own = m.passed + kPassSlots * 8;
  m.free_next = m.free_own + kPassSlots * 8;

  const auto blocks = static_cast<int>(cluster_blocks());
  const unsigned rank = blocks > 1 ? cluster_rank() : 0;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  if (threadIdx.x == 0) {
    for (int part = 0; part < kParts; ++part) {
      for (int i = 0; i < p.stages; ++i) {
        barrier_init(m.full + (part * kMaxStages + i) * 8, 1);
        barrier_init(m.empty + (part * kMaxStages + i) * 8, kRowTiles * kWarpgroup);
      }
    }
    if constexpr (kParts > 1) {
      for (int i = 0; i < kPassSlots; ++i) {
        barrier_init(m.come + i * 8, 1);
        barrier_init(m.passed + i * 8, kWarpgroup);
        barrier_init(m.free_own + i * 8, kWarpgroup);
        barrier_init(m.free_next + i * 8, kRowTileWarps);
      }
    }
    for (int i = 0; i < kSumSlots; ++i) {
      barrier_init(m.sent + i * 8, 1);
      barrier_init(m.taken + i * 8, kRowTileWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (blocks > 1) cluster_arrive_relaxed();  // own barriers are ready

  const int cluster = static_cast<int>(blockIdx.x) / blocks;
  const int clusters = static_cast<int>(gridDim.x) / blocks;
  constexpr int kConsumerWarps = kRowTiles * kParts * kRowTileWarps;
  const int part = kParts == 1              ? 0
                   : warp >= kConsumerWarps ? min(warp - kConsumerWarps, kParts - 1)
                                            : warp / kRowTileWarps;
  m.stages += part * p.stages * p.stage_bytes;
  m.full += part * kMaxStages * 8;
  m.empty += part * kMaxStages * 8;
  if (warp >= kConsumerWarps) {
    if constexpr (Shape::kMovesRegisters) give_registers<Shape::kProducerRegisters>();
    if (warp < kConsumerWarps + kParts && elected_lane()) {
      const int share = p.segments / (blocks * kParts);
      const int first = static_cast<int>(rank) * (kParts > 1 ? kParts * share : 1) + part * share;
      const TileProducer<kTokens, kRowTiles, kParts> producer{
          p, m, blocks, cluster, clusters, first, p.token_tiles == 1 ? evict_first_policy() : evict_normal_policy()};
      producer.run();
    } else {
      if (blocks > 1) cluster_wait();
      wait_for_predecessors();
    }
    __syncwarp();
  } else {
    if constexpr (Shape::kMovesRegisters) take_registers<Shape::kConsumerRegisters>();
    if (blocks > 1) cluster_wait();  // everybody's are
    TileConsumer<kTokens, kRowTiles, kParts> consumer{
        p, m, kParts > 1 ? 0 : warp / kRowTileWarps, part, warp % kRowTileWarps, lane, rank, blocks, Ring{}};
    consumer.find_first(cluster, clusters);
    // The first full stage tells them that the kernels before have ended: of what these write they read nothing else.
    consumer.run(cluster, clusters);
    __syncwarp();
  }
  if (blocks > 1) {  // other blocks may still write here
    cluster_arrive_relaxed();
    cluster_wait();
  }
#endif
}

}  // namespace dsv4rt::cuda
