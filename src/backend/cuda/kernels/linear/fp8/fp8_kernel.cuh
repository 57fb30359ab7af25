// Linear layers of E4M3 weights and inputs at many tokens: a block multiplies 128 or 192 tokens by 64 or 128
// outputs, in two or three consumer warpgroups of 64 tokens, and goes on with item after item. Tokens are the rows of
// the matrix instruction, so that a thread has two of their scales and FP32 promotion is a multiply-add for every sum
// of 128 inputs; while one warpgroup does that the others' products run. One thread keeps a ring of stages full; it
// asks for the weights of the first ones while the kernels in front still run.
//
// The last tokens, where they do not fill an item, come in boxes of their own: rows that the copy engine fills with
// zeros take it longer than rows that it fetches. What a stage held before stands in their place; nothing of it is
// stored.
//
// Problems of BF16 weights and inputs run beside those of codes, or alone, so that products that read one input in both
// forms are one launch: a stage has as many bytes of either, and half as many inputs of these.
//
// Order of accumulation: that of linear_params.h. Totals over segments, touched once for a segment, wait in shared
// memory where three warpgroups' registers hold products and one segment's sums alone.
//
// The two blocks of a cluster deal the segments of an item between them: block 0 has the even ones. Either adds up the
// totals of its warpgroups' tokens, in order, and gets what the other one has of them segment by segment.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/linear/fp8/fp8_consumer.cuh"
#include "backend/cuda/kernels/linear/shared/item_stages.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class Shape>
struct Fp8Producer {
  const PrefillParams& p;
  const Fp8Memory& m;
  std::uint64_t weight_policy;
  Fp8Place place;

  // The stages that a block fetches, segment after segment and item after item. To go on takes a few instructions:
  // where a ring has three slots, every one more of this thread is waited for.
  struct Stages {
    int round = 0;
    int left = 0;                        // stages in a row, the next one included; 0 after the last item
    const std::byte* weights = nullptr;  // the next stage, in the item's first row tile
    std::int64_t second_tile = 0;        // bytes from there to the second row tile, or 0 where there is none
    bool single = false;                 // the item has one row tile
    const CUtensorMap* inputs = nullptr;
    const float* scales = nullptr;  // the next stage's inputs', if they are codes
    int column = 0;
    int columns = 0;  // inputs of a stage
    int token = 0;
    std::uint32_t input_bytes = 0;  // a stage's, with scales
    // Where a cluster shares the item's segments.
    const LinearProblem* problem = nullptr;
    int segment = 0;
  };
  __device__ __forceinline__ void move_by(Stages& at, int stages) const {
    at.weights += std::int64_t{stages} * kFp8TileBytes;
    at.column += stages * at.columns;
    at.scales += std::int64_t{stages} * p.input_scale_stride;
  }
  // To the beginning of the block's segment `segment`, from the end of the one before the last.
  __device__ __forceinline__ void begin_segment(Stages& at, int segment) const {
    const auto begin = [&](int number) {
      return segment_block(p, *at.problem, number) * stages_per_scale(at.problem->kind);
    };
    const int first = begin(segment);
    if (segment > 0) move_by(at, first - begin(segment - 1));  // the other block's
    at.segment = segment;
    at.left = begin(segment + 1) - first;
  }
  __device__ __forceinline__ void begin_item(Stages& at) const {
    const int index = item_of_round(at.round, place.cluster, place.clusters);
    at.left = 0;
    if (index >= p.items) return;
    const LinearItem item = linear_item(p, index);
    const LinearProblem& q = p.problems[item.problem];
    const int item_tiles = Shape::kTakesSingles ? q.item_tiles : Shape::kRowTiles;
    const int row_tile = item.row_group * item_tiles;
    at.columns = stage_inputs(q.kind);
    at.left = q.scale_blocks * stages_per_scale(q.kind);
    const std::int64_t tile_bytes = std::int64_t{at.left} * kFp8TileBytes;
    at.weights = q.codes + row_tile * tile_bytes;
    at.second_tile = row_tile + 1 < q.row_tiles ? tile_bytes : 0;
    if constexpr (Shape::kTakesSingles) at.single = item_tiles == 1;
    const bool last = item.token_tile == p.token_tiles - 1;
    at.inputs = last ? &p.last_inputs[q.input] : &p.inputs[q.input];
    at.input_bytes = (last ? p.last_tokens : Shape::kTokens) * kStageBytesOfInput;
    if (has_scales(at)) at.input_bytes += Shape::kScaleBytes;
    at.column = q.input_block * kScaleBlockInputs;
    at.token = item.token_tile * Shape::kTokens;
    at.scales = p.input_scales + std::int64_t{q.input_block} * p.input_scale_stride + at.token;
    if constexpr (Shape::kSharesSegments) {
      at.problem = &q;
      begin_segment(at, place.rank);
    }
  }
  __device__ __forceinline__ void next(Stages& at) const {
    move_by(at, 1);
    if (--at.left > 0) return;
    if constexpr (Shape::kSharesSegments) {
      const int segment = at.segment + Shape::kClusterBlocks;
      if (segment < p.segments) {
        begin_segment(at, segment);
        return;
      }
    }
    ++at.round;
    begin_item(at);
  }

  // Whether a stage is of codes, whose inputs have scales.
  __device__ __forceinline__ static bool has_scales(const Stages& at) { return at.columns == kScaleBlockInputs; }

  // Announces the inputs and their scales too.
  __device__ __forceinline__ void load_weights(const Stages& at, int slot) const {
    const std::uint32_t barrier = m.full + slot * 8;
    const std::uint32_t to = m.stages + slot * Shape::kStageBytes + Shape::kInputBytes;
    const std::uint32_t weight_bytes = at.single ? kFp8TileBytes : Shape::kWeightBytes;
    barrier_arrive_expect(barrier, weight_bytes + at.input_bytes);
    copy_bulk(to, at.weights, kFp8TileBytes, barrier, weight_policy);
    if (Shape::kRowTiles > 1 && !at.single) {
      copy_bulk(to + kFp8TileBytes, at.weights + at.second_tile, kFp8TileBytes, barrier, weight_policy);
    }
  }
  __device__ __forceinline__ void load_inputs(const Stages& at, int slot) const {
    const std::uint32_t barrier = m.full + slot * 8;
    copy_box(m.stages + slot * Shape::kStageBytes, at.inputs, at.column, at.token, barrier);
    if (!has_scales(at)) return;
    copy_bulk(m.scales + slot * Shape::kScaleBytes, at.scales, Shape::kScaleBytes, barrier);
  }

  // The first stages: weights at once, inputs when the kernels before have written them.
  __device__ __forceinline__ void run() const {
    Stages at;
    begin_item(at);
    Stages ahead = at;
    int filled = 0;
    for (; filled < min(p.stages, Shape::kStagesAhead) && ahead.left > 0; ++filled, next(ahead)) {
      load_weights(ahead, filled);
    }
    if constexpr (Shape::kSharesSegments) cluster_wait();
    wait_for_predecessors();
    fill_ring(*this, at, filled);
    Ring ring;
    refill_ring(*this, at, ring);
  }
};

#endif  // sm_90a

// Grid: any number of clusters of Shape::kClusterBlocks blocks.
template <class Shape>
__global__ __launch_bounds__(Shape::kThreads, 1) void linear_fp8_kernel(const __grid_constant__ PrefillParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kBlocks = Shape::kClusterBlocks;
  allow_dependents();
  extern __shared__ __align__(1024) char fp8_memory[];
  Fp8Memory m;
  m.stages = shared_address(fp8_memory);
  m.buffers = m.stages + p.stages * Shape::kStageBytes;
  m.scales = m.buffers + Shape::buffer_bytes(p.segments > 1);
  m.full = m.scales + p.stages * Shape::kScaleBytes;
  m.empty = m.full + kMaxStages * 8;
  m.sent = m.empty + kMaxStages * 8;
  m.taken = m.sent + Shape::kGroups * kFp8SumSlots * 8;
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(m.full + i * 8, 1);
      barrier_init(m.empty + i * 8, Shape::kGroups * kRowTileWarps);
    }
    for (int i = 0; kBlocks > 1 && i < Shape::kGroups * kFp8SumSlots; ++i) {
      barrier_init(m.sent + i * 8, 1);
      barrier_init(m.taken + i * 8, kRowTileWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if constexpr (kBlocks > 1) cluster_arrive_relaxed();  // own barriers are ready
  const Fp8Place place{static_cast<int>(blockIdx.x) / kBlocks, static_cast<int>(gridDim.x) / kBlocks,
                       kBlocks > 1 ? static_cast<int>(cluster_rank()) : 0};

  if (warp >= Shape::kGroups * kRowTileWarps) {
    give_registers<Shape::kProducerRegisters>();
    if (warp == Shape::kGroups * kRowTileWarps && elected_lane()) {
      const std::uint64_t weights = p.token_tiles == 1 ? evict_first_policy() : evict_normal_policy();
      Fp8Producer<Shape>{p, m, weights, place}.run();
    } else {
      if constexpr (kBlocks > 1) cluster_wait();
    }
    __syncwarp();
  } else {
    take_registers<Shape::kRegisters>();
    if constexpr (kBlocks > 1) cluster_wait();  // everybody's are
    // The first full stage tells them that the kernels before have ended: of what these write they read nothing else.
    Fp8Consumer<Shape>{p, m, place, warp / kRowTileWarps, warp % kRowTileWarps, lane}.run();
    __syncwarp();
  }
  if constexpr (kBlocks > 1) {  // the other block may still write here
    cluster_arrive_relaxed();
    cluster_wait();
  }
#endif
}

}  // namespace dsv4rt::cuda
