// The producer of the tile kernel: one thread that keeps the ring of stages full.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/linear/shared/item_stages.cuh"
#include "backend/cuda/kernels/linear/tile/tile_memory.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kTokens, int kRowTiles, int kParts>
struct TileProducer {
  using Shape = TileShape<kTokens, kRowTiles, kParts>;
  const LinearParams& p;
  const TileMemory& m;
  int blocks;  // number of blocks in the cluster
  int cluster, clusters;
  int first_segment;
  std::uint64_t weight_policy;

  struct Stages : ItemStages {
    int problem = 0;
    int segment = 0;  // the first of those that lie side by side, of which `left` stages are left
  };

  // Where the own segments from the first one on that lie side by side end: parts have all theirs so, a pair's blocks
  // one.
  __device__ __forceinline__ int end_of_first() const {
    return kParts > 1 ? first_segment + p.segments / (blocks * kParts) : blocks > 1 ? first_segment + 1 : p.segments;
  }

  __device__ __forceinline__ void begin_item(Stages& at) const {
    const int index = item_of_round(at.round, cluster, clusters);
    at.left = 0;
    if (index >= p.items) return;
    const LinearItem item = linear_item(p, index);
    const LinearProblem& q = p.problems[item.problem];
    const int first_tile = item.row_group * q.item_tiles;
    const int first_stage = segment_stage(p, q, first_segment);
    at.problem = item.problem;
    at.segment = first_segment;
    at.left = segment_stage(p, q, end_of_first()) - first_stage;
    at.tile_bytes = static_cast<std::uint32_t>(stage_tile_bytes(q.kind));
    at.second_tile = static_cast<std::uint32_t>(q.scale_blocks * kStagesPerScale) * at.tile_bytes;
    at.weights = q.codes + std::int64_t{first_tile} * at.second_tile + first_stage * at.tile_bytes;
    at.tiles = kRowTiles > 1 ? min(q.item_tiles, q.row_tiles - first_tile) : 1;
    at.inputs = &p.inputs[q.input];
    at.column = first_stage * kStageInputs;
    at.token = item.token_tile * p.item_tokens;
  }
  // Goes on to the item's next own segment, over those of the other block; false behind the last.
  __device__ __forceinline__ bool next_segment(Stages& at) const {
    if (kParts > 1 || blocks == 1 || at.segment + blocks >= p.segments) return false;
    const LinearProblem& q = p.problems[at.problem];
    const int end = segment_stage(p, q, at.segment + 1);
    at.segment += blocks;
    const int first = segment_stage(p, q, at.segment);
    at.left = segment_stage(p, q, at.segment + 1) - first;
    at.weights += (first - end) * at.tile_bytes;
    at.column += (first - end) * kStageInputs;
    return true;
  }
  __device__ __forceinline__ void next(Stages& at) const {
    if (at.next_stage() || next_segment(at)) return;
    ++at.round;
    begin_item(at);
  }

  // Announces the inputs too.
  __device__ __forceinline__ void load_weights(const ItemStages& at, int stage) const {
    const std::uint32_t barrier = m.full + stage * 8;
    const std::uint32_t to = m.stages + stage * p.stage_bytes;
    barrier_arrive_expect(barrier,
                          at.tiles * at.tile_bytes + static_cast<std::uint32_t>(p.item_tokens * kStageBytesOfInput));
    copy_bulk(to, at.weights, at.tile_bytes, barrier, weight_policy);
    if (kRowTiles > 1 && at.tiles > 1) {
      copy_bulk(to + at.tile_bytes, at.weights + at.second_tile, at.tile_bytes, barrier, weight_policy);
    }
  }
  __device__ __forceinline__ void load_inputs(const ItemStages& at, int stage) const {
    copy_box(m.stages + stage * p.stage_bytes + p.input_offset, at.inputs, at.column, at.token, m.full + stage * 8);
  }

  __device__ __forceinline__ void run() const {
    // The first stages: weights at once, inputs when the kernels before have written them. Nothing here concerns other
    // blocks; it waits for them all the same before it waits for consumers: racecheck lets nobody past a barrier of the
    // cluster before all threads wait there.
    Stages at;
    begin_item(at);
    Stages ahead = at;
    int filled = 0;
    for (; filled < min(p.stages, Shape::kStagesAhead) && ahead.left > 0; ++filled, next(ahead)) {
      load_weights(ahead, filled);
    }
    if (blocks > 1) cluster_wait();
    wait_for_predecessors();
    fill_ring(*this, at, filled);
    Ring ring;
    refill_ring(*this, at, ring);
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
