// Linear layers of E4M3 weights and inputs at many tokens: a block multiplies 64, 128 or 192 tokens by 128
// outputs, in two or three consumer warpgroups of 64 tokens. Tokens are the rows of the matrix instruction, so that a
// thread has two of their scales and FP32 promotion is a multiply-add for every sum of 128 inputs; while one warpgroup
// does that the others' products run. One thread keeps a ring of stages full; it asks for the weights of the first ones
// while the kernels in front still run.
//
// Order of accumulation: that of linear_params.h. Totals over segments, touched once for a segment, wait in shared
// memory: the registers of three warpgroups hold products and one segment's sums.
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

template <int kTokenGroups, int kRowGroups>
struct Fp8Producer {
  using Shape = Fp8Shape<kTokenGroups, kRowGroups>;

  const PrefillParams& p;
  const Fp8Memory& m;
  std::uint64_t policy;

  // The stages that a block fetches, item after item. To go on takes a few instructions: where a ring has three slots,
  // every one more of this thread is waited for.
  struct Stages {
    int round = 0;
    int left = 0;                        // the item's stages from the next one on; 0 after the last item
    const std::byte* weights = nullptr;  // the next stage, in the item's first row tile
    std::int64_t second_tile = 0;        // bytes from there to the second row tile, or 0 where there is none
    const CUtensorMap* inputs = nullptr;
    const float* scales = nullptr;  // those of the next stage's inputs
    int column = 0;
    int token = 0;
  };
  __device__ __forceinline__ void begin_item(Stages& at) const {
    const int index = item_of_round(at.round, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    at.left = 0;
    if (index >= p.items) return;
    const LinearItem item = linear_item(p, index);
    const LinearProblem& q = p.problems[item.problem];
    const int row_tile = item.row_group * kFp8RowTiles;
    const std::int64_t tile_bytes = std::int64_t{q.scale_blocks} * kFp8TileBytes;
    static_assert(kFp8RowTiles == 2);
    at.left = q.scale_blocks;
    at.weights = q.codes + row_tile * tile_bytes;
    at.second_tile = row_tile + 1 < q.row_tiles ? tile_bytes : 0;
    at.inputs = &p.inputs[q.input];
    at.column = q.input_block * kScaleBlockInputs;
    at.token = item.token_tile * Shape::kTokens;
    at.scales = p.input_scales + std::int64_t{q.input_block} * p.input_scale_stride + at.token;
  }
  __device__ __forceinline__ void next(Stages& at) const {
    at.weights += kFp8TileBytes;
    at.column += kScaleBlockInputs;
    at.scales += p.input_scale_stride;
    if (--at.left > 0) return;
    ++at.round;
    begin_item(at);
  }

  // Announces the inputs and their scales too.
  __device__ __forceinline__ void load_weights(const Stages& at, int slot) const {
    const std::uint32_t barrier = m.full + slot * 8;
    const std::uint32_t to = m.stages + slot * Shape::kStageBytes + Shape::kInputBytes;
    barrier_arrive_expect(barrier, Shape::kStageBytes + Shape::kScaleBytes);
    copy_bulk(to, at.weights, kFp8TileBytes, barrier, policy);
    copy_bulk(to + kFp8TileBytes, at.weights + at.second_tile, kFp8TileBytes, barrier, policy);
  }
  __device__ __forceinline__ void load_inputs(const Stages& at, int slot) const {
    const std::uint32_t barrier = m.full + slot * 8;
    copy_box(m.stages + slot * Shape::kStageBytes, at.inputs, at.column, at.token, barrier);
    copy_bulk(m.scales + slot * Shape::kScaleBytes, at.scales, Shape::kScaleBytes, barrier, policy);
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
    wait_for_predecessors();
    fill_ring(*this, at, filled);
    Ring ring;
    refill_ring(*this, at, ring);
  }
};

#endif  // sm_90a

// Grid: any number of blocks.
template <int kTokenGroups, int kRowGroups>
__global__ __launch_bounds__(Fp8Shape<kTokenGroups, kRowGroups>::kThreads,
                             1) void linear_fp8_kernel(const __grid_constant__ PrefillParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = Fp8Shape<kTokenGroups, kRowGroups>;
  allow_dependents();
  extern __shared__ char fp8_memory[];
  Fp8Memory m;
  m.stages = (shared_address(fp8_memory) + 1023U) & ~1023U;
  m.buffers = m.stages + p.stages * Shape::kStageBytes;
  m.scales = m.buffers + Shape::kGroups * (p.segments > 1 ? Shape::kTotalBytes : Shape::kOutputBytes);
  m.full = m.scales + p.stages * Shape::kScaleBytes;
  m.empty = m.full + kMaxStages * 8;
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(m.full + i * 8, 1);
      barrier_init(m.empty + i * 8, Shape::kGroups * kRowTileWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();

  if (warp >= Shape::kGroups * kRowTileWarps) {
    give_registers<Shape::kProducerRegisters>();
    if (warp == Shape::kGroups * kRowTileWarps && elected_lane())
      Fp8Producer<kTokenGroups, kRowGroups>{p, m, evict_normal_policy()}.run();
    __syncwarp();
  } else {
    take_registers<Shape::kRegisters>();
    // The first full stage tells them that the kernels before have ended: of what these write they read nothing else.
    Fp8Consumer<kTokenGroups, kRowGroups>{p, m, warp / kRowTileWarps, warp % kRowTileWarps, lane, Ring{}}.run();
    __syncwarp();
  }
#endif
}

}  // namespace dsv4rt::cuda
