// Linear layers on Hopper's wgmma: weights are the A operand (64 outputs a warpgroup), tokens the B
// operand (kTokens columns), both read from shared memory, where a producer warp keeps a ring of stages
// full. Weights do not depend on earlier kernels: the producer fetches the first ring of them while the
// previous kernel of the stream still runs.
//
// The order of accumulation is that of linear_params.h. The blocks of a cluster share the segments of an item, and each
// sends its sums to the block that owns the rows.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/linear/tile/tile_consumer.cuh"
#include "backend/cuda/kernels/linear/tile/tile_producer.cuh"

namespace dsv4rt::cuda {

// Grid: any number of clusters of a divisor of `segments` blocks. Dynamic shared memory: tile_shared_bytes.
template <int kTokens, int kRowTiles>
__global__ __launch_bounds__(TileShape<kTokens, kRowTiles>::kThreads,
                             1) void linear_tile_kernel(const __grid_constant__ LinearParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = TileShape<kTokens, kRowTiles>;
  allow_dependents();
  extern __shared__ char tile_memory[];
  const std::uint32_t base = shared_address(tile_memory);
  TileMemory m;
  m.stages = (base + 1023U) & ~1023U;
  m.sums = m.stages + p.stages * p.stage_bytes;
  m.full = m.sums + kRowTiles * p.sum_bytes;
  m.empty = m.full + kMaxStages * 8;
  m.sent = m.empty + kMaxStages * 8;
  m.taken = m.sent + kRowTiles * 8;

  const auto blocks = static_cast<int>(cluster_blocks());
  const unsigned rank = blocks > 1 ? cluster_rank() : 0;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(m.full + i * 8, 1);
      barrier_init(m.empty + i * 8, kRowTiles * kWarpgroup);
    }
    for (int t = 0; t < kRowTiles; ++t) {
      barrier_init(m.sent + t * 8, 1);
      barrier_init(m.taken + t * 8, kRowTileWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (blocks > 1) cluster_arrive_relaxed();  // own barriers are ready

  const int cluster = static_cast<int>(blockIdx.x) / blocks;
  const int clusters = static_cast<int>(gridDim.x) / blocks;
  if (warp >= kRowTiles * kRowTileWarps) {
    if constexpr (Shape::kMovesRegisters) give_registers<24>();
    if (warp == kRowTiles * kRowTileWarps && lane == 0) {
      const int share = p.segments / blocks;
      StageCursor cursor{&p, cluster, clusters, static_cast<int>(rank) * share, static_cast<int>(rank + 1) * share};
      cursor.load_item();
      const TileProducer<kTokens, kRowTiles> producer{
          p, m, blocks, p.token_tiles == 1 ? evict_first_policy() : evict_normal_policy()};
      producer.run(cursor);
    } else {
      if (blocks > 1) cluster_wait();
      wait_for_predecessors();
    }
    __syncwarp();
  } else {
    if constexpr (Shape::kMovesRegisters) take_registers<240>();
    if (blocks > 1) cluster_wait();  // everybody's are
    wait_for_predecessors();
    TileConsumer<kTokens, kRowTiles> consumer{p,      m,     warp / kRowTileWarps, warp % kRowTileWarps, lane, rank,
                                              blocks, Ring{}};
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
