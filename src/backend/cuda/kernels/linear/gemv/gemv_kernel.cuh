// Linear layers for up to eight tokens: a block multiplies one segment of the inputs of 64 outputs, and the blocks of a
// cluster, one a segment, add up. Weights come through a ring in shared memory and do not depend on earlier kernels:
// the first ring of them is fetched while the previous kernel of the stream still runs. Inputs come from where earlier
// kernels left them, norm and rounding included. The order of accumulation is that of linear_params.h.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/linear/gemv/gemv_exchange.cuh"
#include "backend/cuda/kernels/linear/gemv/gemv_inputs.cuh"
#include "backend/cuda/kernels/linear/gemv/gemv_products.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Keeps the ring full, gemv_slots_under_way() at a time; one thread calls it.
__device__ __forceinline__ void load_weights(const GemvUnit& unit) {
  const std::uint64_t policy = evict_first_policy();
  const std::byte* weights = unit.q->codes + (std::int64_t{unit.row_tile} * unit.q->scale_blocks + unit.first_block) *
                                                 (stages_per_scale(unit.q->kind) * stage_tile_bytes(unit.q->kind));
  Ring ring;
  Ring under_way;  // the oldest slot that fills
  const int most_under_way = gemv_slots_under_way(unit.q->kind, unit.slots);
  for (int stage = 0; stage < unit.stages(); ++stage) {
    if (stage >= unit.slots) barrier_wait(unit.empty + ring.stage * 8, ring.parity ^ 1U);
    if (stage >= most_under_way) {
      barrier_wait(unit.full + under_way.stage * 8, under_way.parity);
      under_way.advance(unit.slots);
    }
    const std::uint32_t full = unit.full + ring.stage * 8;
    barrier_arrive_expect(full, kGemvSlotBytes);
    copy_bulk(unit.slot(ring.stage), weights + std::int64_t{stage} * kGemvSlotBytes, kGemvSlotBytes, full, policy);
    ring.advance(unit.slots);
  }
}

#endif  // sm_90a

// Grid: p.items clusters of p.segments blocks.
__global__ __launch_bounds__(kGemvThreads,
                             kMostGemvBlocks) void linear_gemv_kernel(const __grid_constant__ LinearParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  allow_dependents();
  extern __shared__ char gemv_memory[];
  const std::uint32_t base = shared_address(gemv_memory);
  const int rank = p.segments > 1 ? static_cast<int>(cluster_rank()) : 0;
  const LinearItem item = linear_item(p, static_cast<int>(blockIdx.x) >> exponent_of(p.segments));
  GemvUnit unit;
  unit.q = &p.problems[item.problem];
  unit.row_tile = item.row_group;
  unit.first_block = segment_block(p, *unit.q, rank);
  unit.blocks = segment_block(p, *unit.q, rank + 1) - unit.first_block;
  unit.slots = min(p.ring_bytes / kGemvSlotBytes, kMaxStages);
  unit.full = base;
  unit.empty = unit.full + kMaxStages * 8;
  unit.received_full = unit.empty + kMaxStages * 8;
  unit.norms = unit.received_full + 8;
  unit.ring = (base + kGemvBarrierBytes + 1023U) & ~1023U;
  unit.received = unit.ring + p.ring_bytes;
  unit.codes = unit.received + kGemvReceivedBytes;
  unit.code_scales = unit.codes + unit.blocks * kGemvCodeBytes;
  unit.rows = unit.codes + (unit.q->kind == TileKind::kFp8Products ? gemv_code_bytes(unit.blocks) : 0);
  const bool whole_rows = p.norm.weight != nullptr;
  unit.row_bytes = gemv_row_bytes(whole_rows ? unit.q->scale_blocks : unit.blocks);
  unit.inputs = unit.rows + (whole_rows ? unit.first_block * kUnitsPerScale * kUnitBytes : 0);

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool loads = warp == kRowTileWarps;
  if (loads && lane == 0) {
    for (int i = 0; i < unit.slots; ++i) {
      barrier_init(unit.full + i * 8, 1);
      barrier_init(unit.empty + i * 8, kWarpgroup);
    }
    barrier_init(unit.received_full, 1);
    barrier_init_fence();
    barrier_arrive_expect(unit.received_full, GemvExchange::expected_bytes(p.tokens));
  }
  __syncthreads();
  if (p.segments > 1) cluster_arrive_relaxed();  // others may send sums here
  if (loads) {
    if (elected_lane()) load_weights(unit);
    __syncwarp();
    wait_for_predecessors();
    if (p.segments > 1) cluster_wait();
    return;
  }
  GemvProducts products{p, unit, warp, lane};
  const float scales = products.lane_scales(0);
  const GemvInputs inputs(p, unit);
  if (p.segments > 1) cluster_wait();
  wait_for_predecessors();
  inputs.bring();
  float sum[4];
  products.multiply(sum, scales);
  GemvExchange{p, unit, rank, warp, lane}.store(sum);
#endif
}

}  // namespace dsv4rt::cuda
