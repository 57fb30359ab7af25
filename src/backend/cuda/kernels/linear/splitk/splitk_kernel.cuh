// Linear layers for up to some 160 tokens, where the gemv kernel does not take them: a warpgroup multiplies one
// segment of the inputs of 64 outputs, and the kGroups warpgroups of a block, or of the blocks of a cluster, add up.
// Weights are the A operand of wgmma, tokens the B operand. Stages come through a ring in shared memory, one for each
// warpgroup; weights do not depend on earlier kernels, so the first ring of them is fetched while the previous kernel
// of the stream still runs. The order of accumulation is that of linear_params.h.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/linear/splitk/splitk_consumer.cuh"
#include "backend/cuda/kernels/linear/splitk/splitk_loader.cuh"

namespace dsv4rt::cuda {

// Grid: p.items clusters of p.segments / kGroups blocks. p.ring_bytes: of a warpgroup.
template <int kTokens, int kGroups, int kRows>
__global__ __launch_bounds__(
    SplitKShape<kTokens, kGroups, kRows>::kThreads,
    SplitKShape<kTokens, kGroups, kRows>::kBlocksPerSm) void linear_splitk_kernel(const __grid_constant__ LinearParams
                                                                                      p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = SplitKShape<kTokens, kGroups, kRows>;
  allow_dependents();
  extern __shared__ __align__(1024) char splitk_memory[];
  const std::uint32_t first_ring = shared_address(splitk_memory);
  // Known to be uniform.
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kGroupWarps = kRows * kRowTileWarps;
  const bool loads = Shape::kLoaderWarps && warp >= kGroups * kGroupWarps;
  const int group = loads ? warp - kGroups * kGroupWarps : warp / kGroupWarps;
  const bool keeps_ring = Shape::kLoaderWarps ? loads : warp % kGroupWarps == 0;
  const int blocks = p.segments / kGroups;
  const int rank = blocks > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int segment = rank * kGroups + group;
  const LinearItem item = linear_item(p, static_cast<int>(blockIdx.x) >> exponent_of(blocks));
  const LinearProblem& q = p.problems[item.problem];
  SplitKUnit unit;
  unit.q = &q;
  unit.row = kRows > 1 ? warp % kGroupWarps / kRowTileWarps : 0;
  unit.row_tile = item.row_group * kRows + unit.row;
  unit.first_token = item.token_tile * p.item_tokens;
  unit.first_block = segment_block(p, q, segment);
  unit.blocks = segment_block(p, q, segment + 1) - unit.first_block;
  unit.tile_bytes = stage_tile_bytes(q.kind);
  unit.slot_bytes = kRows * unit.tile_bytes + kSplitKBoxBytes<kTokens> + splitk_scale_bytes(q.kind);
  unit.slots = min(p.ring_bytes / unit.slot_bytes, kMaxStages);
  unit.ring = first_ring + group * p.ring_bytes;
  unit.full = first_ring + kGroups * p.ring_bytes + group * Shape::kGroupBarrierBytes;
  unit.empty = unit.full + kMaxStages * 8;

  if (keeps_ring && lane == 0) {
    for (int i = 0; i < unit.slots; ++i) {
      barrier_init(unit.full + i * 8, 1);
      barrier_init(unit.empty + i * 8, Shape::kReaders);
      if constexpr (Shape::kLoaderWarps) barrier_init(unit.first_inputs(i), 1);
    }
    barrier_init_fence();
  }
  __syncthreads();

  const auto sync_cluster = [] {
    cluster_arrive();
    cluster_wait();
  };
  SplitKLoader<kTokens, kRows, Shape::kLoaderWarps> loader{
      p, unit, p.token_tiles == 1 ? evict_first_policy() : evict_normal_policy()};
  if (loads) {
    if (elected_lane()) {
      loader.start();
      while (loader.more()) loader.refill();
    }
    __syncwarp();
    wait_for_predecessors();
    if (blocks > 1) {
      sync_cluster();
      sync_cluster();
    }
    return;
  }
  if constexpr (!Shape::kLoaderWarps) {
    if (keeps_ring && elected_lane()) loader.start();
    __syncwarp();
  }
  SplitKConsumer<kTokens, kGroups, kRows> consumer{p, unit, loader, group, warp % kRowTileWarps, lane};
  const float scales = consumer.lane_scales(0);
  if constexpr (Shape::kLoaderWarps) {
    if (elected_lane()) loader.expect_first_inputs(warp % kGroupWarps, kGroupWarps);
    __syncwarp();
  }
  wait_for_predecessors();
  if constexpr (Shape::kLoaderWarps) {  // the loader may be waiting for weights
    if (elected_lane()) loader.load_first_inputs(warp % kGroupWarps, kGroupWarps);
    __syncwarp();
  }
  consumer.multiply(scales);
  if (blocks == 1) {
    consumer.sync();
    consumer.store(rank, first_ring, p.ring_bytes);
    return;
  }
  sync_cluster();
  consumer.store(rank, first_ring, p.ring_bytes);
  sync_cluster();  // others may still read here
#endif
}

}  // namespace dsv4rt::cuda
