// Linear layers for up to 64 tokens, where the narrow kernel does not take them: a block multiplies one segment of the
// inputs of 64 outputs, and the blocks of a cluster, one a segment, add up. Weights are the A operand of wgmma, tokens
// the B operand. Stages come through a ring in shared memory; weights do not depend on earlier kernels, so the first
// ring of them is fetched while the previous kernel of the stream still runs. The order of accumulation is that of the
// tile kernel (tile_kernel.cuh).
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/linear/segment_consumer.cuh"
#include "backend/cuda/kernels/linear/segment_loader.cuh"

namespace dsv4rt::cuda {

// Grid: p.items clusters of p.segments blocks.
template <int kTokens>
__global__ __launch_bounds__(
    SegmentShape<kTokens>::kThreads,
    SegmentShape<kTokens>::kBlocksPerSm) void linear_segment_kernel(const __grid_constant__ TileParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = SegmentShape<kTokens>;
  allow_dependents();
  extern __shared__ char segment_memory[];
  const std::uint32_t base = shared_address(segment_memory);
  const int rank = p.segments > 1 ? static_cast<int>(cluster_rank()) : 0;
  const TileItem item = tile_item(p, static_cast<int>(blockIdx.x) / p.segments);
  const TileProblem& q = p.problems[item.problem];
  SegmentUnit unit;
  unit.q = &q;
  unit.row_tile = item.row_group;
  unit.first_token = item.token_tile * kTokens;
  unit.first_block = q.scale_blocks * rank / p.segments;
  unit.blocks = q.scale_blocks * (rank + 1) / p.segments - unit.first_block;
  unit.tile_bytes = stage_tile_bytes(q.kind);
  unit.slot_bytes = unit.tile_bytes + Shape::kBoxBytes;
  unit.slots = min(p.ring_bytes / unit.slot_bytes, kMaxStages);
  unit.full = base;
  unit.empty = unit.full + kMaxStages * 8;
  unit.ring = (base + Shape::kBarrierBytes + 1023U) & ~1023U;

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < unit.slots; ++i) {
      barrier_init(unit.full + i * 8, 1);
      barrier_init(unit.empty + i * 8, kWarpgroup);
    }
    barrier_init_fence();
  }
  __syncthreads();

  SegmentLoader<kTokens> loader{p, unit, p.token_tiles == 1 ? evict_first_policy() : evict_normal_policy()};
  const auto sync_cluster = [] {
    cluster_arrive();
    cluster_wait();
  };
  if constexpr (Shape::kLoaderWarp) {
    if (warp == kRowTileWarps) {
      if (lane == 0) {
        loader.start();
        while (loader.more()) loader.refill();
      }
      __syncwarp();
      wait_for_predecessors();
      if (p.segments > 1) {
        sync_cluster();
        sync_cluster();
      }
      return;
    }
  } else {
    if (threadIdx.x == 0) loader.start();
    __syncwarp();
  }
  SegmentConsumer<kTokens> consumer{p, unit, loader, warp, lane};
  const float scales = consumer.lane_scales(0);
  wait_for_predecessors();
  consumer.multiply(scales);
  if (p.segments == 1) {
    consumer.sync();
    consumer.store(rank);
    return;
  }
  sync_cluster();
  consumer.store(rank);
  sync_cluster();  // others may still read here
#endif
}

}  // namespace dsv4rt::cuda
