// The producer of the prefill kernel: one thread that keeps the ring of stages full.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/linear/prefill/prefill_shape.cuh"
#include "backend/cuda/kernels/linear/shared/item_stages.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kTokens>
struct PrefillProducer {
  using Shape = PrefillShape<kTokens>;

  const PrefillParams& p;
  const PrefillMemory& m;
  int rank;  // rank of the block in its pair
  int pair, pairs;
  std::uint64_t weight_policy;

  __device__ __forceinline__ void begin_item(ItemStages& at) const {
    const int index = item_of_round(at.round, pair, pairs);
    at.left = 0;
    if (index >= p.items) return;
    const LinearItem item = linear_item(p, index);
    const LinearProblem& q = p.problems[item.problem];
    const int first_tile = (item.row_group * kPrefillBlocks + rank) * kPrefillBlockTiles;
    at.left = q.scale_blocks * kStagesPerScale;
    at.tile_bytes = static_cast<std::uint32_t>(stage_tile_bytes(q.kind));
    at.second_tile = static_cast<std::uint32_t>(at.left) * at.tile_bytes;
    at.weights = q.codes + std::int64_t{first_tile} * at.second_tile;
    at.tiles = max(0, min(kPrefillBlockTiles, q.row_tiles - first_tile));
    at.inputs = &p.inputs[q.input];
    at.column = 0;
    at.token = item.token_tile * kTokens + rank * Shape::kShareTokens;
  }
  __device__ __forceinline__ void next(ItemStages& at) const {
    if (at.next_stage()) return;
    ++at.round;
    begin_item(at);
  }

  // The block's own row tiles; announces the inputs too.
  __device__ __forceinline__ void load_weights(const ItemStages& at, int stage) const {
    const std::uint32_t barrier = m.full + stage * 8;
    const std::uint32_t to = m.stages + stage * p.stage_bytes;
    barrier_arrive_expect(barrier, at.tiles * at.tile_bytes + Shape::kInputBytes);
    if (at.tiles > 0) copy_bulk(to, at.weights, at.tile_bytes, barrier, weight_policy);
    if (at.tiles > 1) copy_bulk(to + at.tile_bytes, at.weights + at.second_tile, at.tile_bytes, barrier, weight_policy);
  }

  // Half of the item's tokens, to both blocks.
  __device__ __forceinline__ void load_inputs(const ItemStages& at, int stage) const {
    copy_box_multicast(
        m.stages + stage * p.stage_bytes + p.input_offset + rank * (Shape::kShareTokens * kStageBytesOfInput),
        at.inputs, at.column, at.token, m.full + stage * 8, (1U << kPrefillBlocks) - 1);
  }

  __device__ __forceinline__ void run() const {
    // The first ring: weights at once, inputs when the other block listens and the kernels before have written them.
    ItemStages at;
    begin_item(at);
    ItemStages ahead = at;
    int filled = 0;
    for (; filled < p.stages && ahead.left > 0; ++filled, next(ahead)) load_weights(ahead, filled);
    cluster_wait();
    wait_for_predecessors();
    for (int i = 0; i < filled; ++i, next(at)) load_inputs(at, i);
    Ring ring;
    refill_ring(*this, at, ring);
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
