// What a warpgroup of the split-K kernel works on, and the thread that keeps its ring of stages full.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/linear/shared/items.cuh"
#include "backend/cuda/kernels/linear/splitk/splitk_shape.h"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// One segment of one row tile, for one tile of tokens; and shared-memory addresses.
struct SplitKUnit {
  const LinearProblem* q;
  int row;       // number among the block's row tiles
  int row_tile;  // number among the problem's row tiles
  int first_token;
  int first_block;  // number of the segment's first block of 128 inputs
  int blocks;
  int tile_bytes;       // weights of one row tile in a stage
  int slot_bytes;       // size of a stage: weights of every row tile, inputs, and their scales for kFp8Products
  int slots;            // slots of the ring
  std::uint32_t ring;   // [slots][slot_bytes], later the sums
  std::uint32_t full;   // [slots] barriers
  std::uint32_t empty;  // [slots]

  __device__ __forceinline__ std::uint32_t slot(int i) const { return ring + i * slot_bytes; }
  __device__ __forceinline__ int stages() const { return blocks * stages_per_scale(q->kind); }
};

template <int kTokens, int kRows>
struct SplitKLoader {
  const LinearParams& p;
  const SplitKUnit& unit;
  std::uint64_t weight_policy;
  Ring ring{};
  int next = 0;  // stage to load

  __device__ __forceinline__ void load_weights(int stage, int slot) const {
    const std::uint32_t barrier = unit.full + slot * 8;
    const int scale_bytes = unit.q->kind == TileKind::kFp8Products ? kTokens * int{sizeof(float)} : 0;
    barrier_arrive_expect(barrier,
                          static_cast<std::uint32_t>(kRows * unit.tile_bytes + kSplitKBoxBytes<kTokens> + scale_bytes));
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      // A row tile beyond the problem's last multiplies the last one's weights in vain.
      const int row_tile = row == 0 ? unit.row_tile : min(unit.row_tile + row, unit.q->row_tiles - 1);
      const std::int64_t stages_before =
          (std::int64_t{row_tile} * unit.q->scale_blocks + unit.first_block) * stages_per_scale(unit.q->kind) + stage;
      copy_bulk(unit.slot(slot) + row * unit.tile_bytes, unit.q->codes + stages_before * unit.tile_bytes,
                static_cast<std::uint32_t>(unit.tile_bytes), barrier, weight_policy);
    }
  }
  __device__ __forceinline__ void load_inputs(int stage, int slot) const {
    const TileKind kind = unit.q->kind;
    const std::uint32_t to = unit.slot(slot) + kRows * unit.tile_bytes;
    copy_box(to, &p.inputs[unit.q->input], (unit.first_block * stages_per_scale(kind) + stage) * stage_inputs(kind),
             unit.first_token, unit.full + slot * 8);
    if (kind != TileKind::kFp8Products) return;
    const float* scales = p.input_scales + std::int64_t{unit.first_block + stage} * p.input_scale_stride;
    copy_bulk(to + kSplitKBoxBytes<kTokens>, scales + unit.first_token, kTokens * int{sizeof(float)},
              unit.full + slot * 8, evict_normal_policy());
  }

  // The first ring: weights at once, inputs when the kernels before have written them.
  __device__ __forceinline__ void start() {
    next = min(unit.stages(), unit.slots);
    for (int i = 0; i < next; ++i) load_weights(i, i);
    wait_for_predecessors();
    for (int i = 0; i < next; ++i) load_inputs(i, i);
  }

  __device__ __forceinline__ bool more() const {
    return next < unit.stages();
  }

  // Another stage where the oldest one was, once every warp has released that. Precondition: more().
  __device__ __forceinline__ void refill() {
    barrier_wait(unit.empty + ring.stage * 8, ring.parity);
    load_weights(next, ring.stage);
    load_inputs(next, ring.stage);
    ++next;
    ring.advance(unit.slots);
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
