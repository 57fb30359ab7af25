// The producer of the tile kernel: one thread that keeps the ring of stages full.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/linear/tile/tile_memory.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Walks the stages of this block's items.
struct StageCursor {
  const LinearParams* p;
  int cluster, clusters, first_segment, end_segment;
  int round = 0;
  LinearItem item{};
  int stage = 0, end = 0;
  bool valid = false;

  __device__ __forceinline__ void load_item() {
    const int index = item_of_round(round, cluster, clusters);
    valid = index < p->items;
    if (!valid) return;
    item = linear_item(*p, index);
    const LinearProblem& q = p->problems[item.problem];
    stage = segment_stage(*p, q, first_segment);
    end = segment_stage(*p, q, end_segment);
  }
  __device__ __forceinline__ void next() {
    if (++stage < end) return;
    ++round;
    load_item();
  }
};

template <int kTokens, int kRowTiles, int kParts>
struct TileProducer {
  using Shape = TileShape<kTokens, kRowTiles, kParts>;
  const LinearParams& p;
  const TileMemory& m;
  int blocks;  // number of blocks in the cluster
  std::uint64_t weight_policy;

  __device__ __forceinline__ void load_weights(const StageCursor& at, int stage) const {
    const LinearProblem& q = p.problems[at.item.problem];
    const int tile_bytes = stage_tile_bytes(q.kind);
    const int first_tile = at.item.row_group * q.item_tiles;
    const int tiles = min(q.item_tiles, q.row_tiles - first_tile);
    const std::uint32_t barrier = m.full + stage * 8;
    barrier_arrive_expect(barrier, static_cast<std::uint32_t>(tiles * tile_bytes + Shape::kInputBytes));
    const int stages = segment_stage(p, q, p.segments);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      if (t >= tiles) break;
      const std::int64_t offset = (std::int64_t{first_tile + t} * stages + at.stage) * tile_bytes;
      copy_bulk(m.stages + stage * p.stage_bytes + t * tile_bytes, q.codes + offset,
                static_cast<std::uint32_t>(tile_bytes), barrier, weight_policy);
    }
  }

  __device__ __forceinline__ void load_inputs(const StageCursor& at, int stage) const {
    const LinearProblem& q = p.problems[at.item.problem];
    const std::uint32_t barrier = m.full + stage * 8;
    const int first_token = at.item.token_tile * kTokens;
    copy_box(m.stages + stage * p.stage_bytes + p.input_offset, &p.inputs[q.input], at.stage * kStageInputs,
             first_token, barrier);
  }

  __device__ __forceinline__ void run(StageCursor cursor) const {
    // The first stages: weights at once, inputs when the kernels before have written them. Nothing here concerns other
    // blocks; it waits for them all the same before it waits for consumers: racecheck lets nobody past a barrier of the
    // cluster before all threads wait there.
    StageCursor ahead = cursor;
    int filled = 0;
    for (; filled < min(p.stages, Shape::kStagesAhead) && ahead.valid; ++filled, ahead.next())
      load_weights(ahead, filled);
    if (blocks > 1) cluster_wait();
    wait_for_predecessors();
    for (int i = 0; i < filled; ++i, cursor.next()) load_inputs(cursor, i);
    for (int i = filled; i < p.stages && cursor.valid; ++i, cursor.next()) {
      load_weights(cursor, i);
      load_inputs(cursor, i);
    }
    Ring ring;
    while (cursor.valid) {
      barrier_wait(m.empty + ring.stage * 8, ring.parity);
      load_weights(cursor, ring.stage);
      load_inputs(cursor, ring.stage);
      cursor.next();
      ring.advance(p.stages);
    }
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
