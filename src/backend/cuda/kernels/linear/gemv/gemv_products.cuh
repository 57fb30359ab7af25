// The products of the gemv kernel: a warp multiplies 16 outputs by the tokens, a segment of the inputs through. The
// sums have the bits that wgmma gives: both instructions add 16 products at a time.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/wgmma_e4m3.cuh"
#include "backend/cuda/kernels/linear/gemv/gemv_unit.cuh"
#include "backend/cuda/kernels/linear/shared/widen.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct GemvProducts {
  const LinearParams& p;
  const GemvUnit& unit;
  int warp;
  int lane;
  Ring ring{};

  // The scales of 32 blocks of 128 inputs from `first` on, one a lane.
  __device__ __forceinline__ float lane_scales(int first) const {
    const LinearProblem& q = *unit.q;
    if (q.kind == TileKind::kBf16 || first + lane >= unit.blocks) return 0.0F;
    return __ldg(q.scales + std::int64_t{unit.row_tile} * q.scale_blocks + unit.first_block + first + lane);
  }

  __device__ __forceinline__ void wait_full() const { barrier_wait(unit.full + ring.stage * 8, ring.parity); }
  // After the products of a stage. The fence lets this lane's reads end before the copy engine writes there: the
  // compiler starts them before the arrival but does not wait for them. All lanes arrive: race checkers do not follow
  // __syncwarp().
  __device__ __forceinline__ void release() {
    fence_async_proxy();
    barrier_arrive(unit.empty + ring.stage * 8);
    ring.advance(unit.slots);
  }

  // What the lane names to load_matrix_x4 for the B operands of the segment's first 32 inputs; matrix m is unit m of
  // eight tokens, the last one in place of those beyond.
  __device__ __forceinline__ std::uint32_t first_columns() const {
    return unit.place(lane / 8, min(lane % 8, p.tokens - 1));
  }
  static constexpr std::uint32_t kNextColumns = 4 * kUnitBytes;  // from 32 inputs to the next

  __device__ __forceinline__ void sum_wide(float (&sum)[4], float scales) {
    constexpr int kPrefills = kScaleBlockInputs / (2 * kTileStepInputs);  // pairs of steps of 16 inputs
    std::uint32_t columns = first_columns();
    for (int block = 0; block < unit.blocks; ++block) {
      if (block > 0 && block % 32 == 0) scales = lane_scales(block);
      const std::uint32_t factors = widening_factors(__shfl_sync(0xffffffffU, scales, block % 32));
      std::uint32_t b[kPrefills][4];
#pragma unroll
      for (int i = 0; i < kPrefills; ++i, columns += kNextColumns) load_matrix_x4(b[i], columns);
      wait_full();
      const std::uint32_t at = unit.slot(ring.stage) + (warp * 32 + lane) * 16;
      uint4 codes[kPrefills];
#pragma unroll
      for (int i = 0; i < kPrefills; ++i) codes[i] = load_shared_uint4(at + i * kWarpgroup * 16);
#pragma unroll
      for (int i = 0; i < kPrefills; ++i) {
        std::uint32_t a[2][4];
        widen(codes[i].x, codes[i].y, factors, a[0]);
        widen(codes[i].z, codes[i].w, factors, a[1]);
        mma_16x8x16(sum, a[0], b[i][0], b[i][1]);
        mma_16x8x16(sum, a[1], b[i][2], b[i][3]);
      }
      release();
    }
  }

  __device__ __forceinline__ void sum_bf16(float (&sum)[4]) {
    constexpr int kPrefills = kStageInputs / (2 * kTileStepInputs);
    std::uint32_t columns = first_columns();
    // Matrices of a step: rows 0-7, then 8-15 of the warp's, of the first unit, then of the second.
    const std::uint32_t row = static_cast<std::uint32_t>(warp * 16 + lane / 8 % 2 * 8 + lane % 8) * kStageBytesOfInput;
    const int stages = unit.stages();
    for (int stage = 0; stage < stages; ++stage) {
      std::uint32_t b[kPrefills][4], a[2 * kPrefills][4];
#pragma unroll
      for (int i = 0; i < kPrefills; ++i, columns += kNextColumns) load_matrix_x4(b[i], columns);
      wait_full();
      const std::uint32_t at = unit.slot(ring.stage) + row;
#pragma unroll
      for (int i = 0; i < 2 * kPrefills; ++i) {
        load_matrix_x4(a[i], at + static_cast<std::uint32_t>((2 * i + lane / 16) ^ (lane % 8)) * kUnitBytes);
      }
#pragma unroll
      for (int i = 0; i < kPrefills; ++i) {
        mma_16x8x16(sum, a[2 * i], b[i][0], b[i][1]);
        mma_16x8x16(sum, a[2 * i + 1], b[i][2], b[i][3]);
      }
      release();
    }
  }

  // Sums of 128 inputs by the whole warpgroup, scaled and added up.
  __device__ __forceinline__ void sum_products(float (&sum)[4], float scales) {
    for (int block = 0; block < unit.blocks; ++block) {
      if (block > 0 && block % 32 == 0) scales = lane_scales(block);
      const float weight = __shfl_sync(0xffffffffU, scales, block % 32);
      const float2 tokens = load_shared_float2(unit.code_scales + (block * kGemvTokens + lane % 4 * 2) * 4);
      float product[4];
      wait_full();
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kE4m3Steps; ++step) {
        WgmmaE4m3<kGemvTokens>::run(product, wgmma_tile(unit.slot(ring.stage), step),
                                    wgmma_tile(unit.codes + block * kGemvCodeBytes, step), step > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_hold(product);
      barrier_arrive(unit.empty + ring.stage * 8);
      ring.advance(unit.slots);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = __fmaf_rn(product[i], weight * (i % 2 == 0 ? tokens.x : tokens.y), sum[i]);
    }
  }

  // sum: see mma_16x8x16(); wgmma's is the same.
  __device__ __forceinline__ void multiply(float (&sum)[4], float scales) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = 0.0F;
    if (unit.q->kind == TileKind::kBf16) {
      sum_bf16(sum);
    } else if (unit.q->kind == TileKind::kFp8Products) {
      sum_products(sum, scales);
    } else {
      sum_wide(sum, scales);
    }
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
