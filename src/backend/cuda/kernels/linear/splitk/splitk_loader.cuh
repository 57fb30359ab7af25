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
  std::uint32_t full;   // [kMaxStages] barriers
  std::uint32_t empty;  // [kMaxStages]; behind it, of a loader in a warp of its own, those of the first ring's inputs

  __device__ __forceinline__ std::uint32_t slot(int i) const { return ring + i * slot_bytes; }
  __device__ __forceinline__ std::uint32_t first_inputs(int slot) const { return empty + (kMaxStages + slot) * 8; }
  __device__ __forceinline__ int stages() const { return blocks * stages_per_scale(q->kind); }
};

// kOwnWarp: it has one, and does not multiply.
template <int kTokens, int kRows, bool kOwnWarp>
struct SplitKLoader {
  const LinearParams& p;
  const SplitKUnit& unit;
  std::uint64_t weight_policy;
  Ring ring{};
  int next = 0;  // stage to load

  // Those that fill the ring.
  [[nodiscard]] __device__ __forceinline__ int first_stages() const { return min(unit.stages(), unit.slots); }
  [[nodiscard]] __device__ __forceinline__ int input_bytes() const {
    const int scale_bytes = unit.q->kind == TileKind::kFp8Products ? kTokens * int{sizeof(float)} : 0;
    return p.item_tokens * kStageBytesOfInput + scale_bytes;
  }

  // other_bytes: what else the slot's barrier waits for.
  __device__ __forceinline__ void load_weights(int stage, int slot, int other_bytes) const {
    const std::uint32_t barrier = unit.full + slot * 8;
    barrier_arrive_expect(barrier, static_cast<std::uint32_t>(kRows * unit.tile_bytes + other_bytes));
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
  __device__ __forceinline__ void load_inputs(int stage, int slot, std::uint32_t barrier) const {
    const TileKind kind = unit.q->kind;
    const std::uint32_t to = unit.slot(slot) + kRows * unit.tile_bytes;
    const int block = unit.q->input_block + unit.first_block;
    copy_box(to, &p.inputs[unit.q->input], (block * stages_per_scale(kind) + stage) * stage_inputs(kind),
             unit.first_token, barrier);
    if (kind != TileKind::kFp8Products) return;
    const float* scales = p.input_scales + std::int64_t{block + stage} * p.input_scale_stride;
    copy_bulk(to + kSplitKBoxBytes<kTokens>, scales + unit.first_token, kTokens * int{sizeof(float)}, barrier,
              evict_normal_policy());
  }

  // The first ring, until the kernels before have ended. In a warp of its own the weights alone, some slots at a time.
  __device__ __forceinline__ void start() {
    next = first_stages();
    if constexpr (kOwnWarp) {
      const int under_way = splitk_slots_under_way(unit.q->kind);
      for (int i = 0; i < next; ++i) {
        if (i >= under_way) barrier_wait(unit.full + (i - under_way) * 8, 0);
        load_weights(i, i, 0);
      }
      wait_for_predecessors();
    } else {
      for (int i = 0; i < next; ++i) load_weights(i, i, input_bytes());
      wait_for_predecessors();
      for (int i = 0; i < next; ++i) load_inputs(i, i, unit.full + i * 8);
    }
  }
  // kOwnWarp: a share of the first ring's inputs, slots `first`, first + step, ... For the warps that multiply, each
  // with some, since one thread would take 0.7 us for all. Announced before the wait for the kernels in front, brought
  // behind it.
  __device__ __forceinline__ void expect_first_inputs(int first, int step) const {
    for (int i = first; i < first_stages(); i += step) {
      barrier_arrive_expect(unit.first_inputs(i), static_cast<std::uint32_t>(input_bytes()));
    }
  }
  __device__ __forceinline__ void load_first_inputs(int first, int step) const {
    for (int i = first; i < first_stages(); i += step) load_inputs(i, i, unit.first_inputs(i));
  }

  __device__ __forceinline__ bool more() const {
    return next < unit.stages();
  }

  // Another stage where the oldest one was, once every warp has released that. Precondition: more().
  __device__ __forceinline__ void refill() {
    barrier_wait(unit.empty + ring.stage * 8, ring.parity);
    load_weights(next, ring.stage, input_bytes());
    load_inputs(next, ring.stage, unit.full + ring.stage * 8);
    ++next;
    ring.advance(unit.slots);
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
