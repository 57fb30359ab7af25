// Linear layers of E4M3 weights and inputs at many tokens: a block multiplies 64, 128 or 192 tokens by 128
// outputs, in two or three consumer warpgroups of 64 tokens. Tokens are the rows of the matrix instruction, so that a
// thread has two of their scales and FP32 promotion is a multiply-add for every sum of 128 inputs; while one warpgroup
// does that the others' products run. One thread keeps a ring of stages full.
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

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kTokenGroups, int kRowGroups>
struct Fp8Producer {
  using Shape = Fp8Shape<kTokenGroups, kRowGroups>;

  const PrefillParams& p;
  const Fp8Memory& m;
  std::uint64_t policy;
  Ring ring;
  int filled = 0;  // slots that were used before

  __device__ __forceinline__ void load(const LinearProblem& q, int row_tile, int first_token, int block) {
    if (filled == p.stages) {
      barrier_wait(m.empty + ring.stage * 8, ring.parity ^ 1U);
    } else {
      ++filled;
    }
    const std::uint32_t barrier = m.full + ring.stage * 8;
    const std::uint32_t to = m.stages + ring.stage * Shape::kStageBytes;
    barrier_arrive_expect(barrier, Shape::kStageBytes + Shape::kScaleBytes);
#pragma unroll
    for (int tile = 0; tile < kFp8RowTiles; ++tile) {
      const std::int64_t at = std::int64_t{min(row_tile + tile, q.row_tiles - 1)} * q.scale_blocks + block;
      copy_bulk(to + Shape::kInputBytes + tile * kFp8TileBytes, q.codes + at * kFp8TileBytes, kFp8TileBytes, barrier,
                policy);
    }
    copy_box(to, &p.inputs[q.input], block * kScaleBlockInputs, first_token, barrier);
    copy_bulk(m.scales + ring.stage * Shape::kScaleBytes,
              p.input_scales + std::int64_t{block} * p.input_scale_stride + first_token, Shape::kScaleBytes, barrier,
              policy);
    ring.advance(p.stages);
  }

  __device__ __forceinline__ void run() {
    const int blocks = static_cast<int>(gridDim.x);
    for (int round = 0;; ++round) {
      const int index = item_of_round(round, static_cast<int>(blockIdx.x), blocks);
      if (index >= p.items) return;
      const LinearItem item = linear_item(p, index);
      const LinearProblem& q = p.problems[item.problem];
      for (int block = 0; block < q.scale_blocks; ++block) {
        load(q, item.row_group * kFp8RowTiles, item.token_tile * Shape::kTokens, block);
      }
    }
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
  wait_for_predecessors();

  if (warp >= Shape::kGroups * kRowTileWarps) {
    give_registers<Shape::kProducerRegisters>();
    if (warp == Shape::kGroups * kRowTileWarps && lane == 0)
      Fp8Producer<kTokenGroups, kRowGroups>{p, m, evict_normal_policy(), Ring{}}.run();
    __syncwarp();
  } else {
    take_registers<Shape::kRegisters>();
    Fp8Consumer<kTokenGroups, kRowGroups>{p, m, warp / kRowTileWarps, warp % kRowTileWarps, lane, Ring{}}.run();
    __syncwarp();
  }
#endif
}

}  // namespace dsv4rt::cuda
