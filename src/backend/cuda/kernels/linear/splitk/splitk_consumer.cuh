// A warpgroup of the split-K kernel that multiplies, and what the block does with the sums.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

#include "backend/cuda/kernels/common/wgmma.cuh"
#include "backend/cuda/kernels/common/wgmma_e4m3.cuh"
#include "backend/cuda/kernels/linear/shared/widen.cuh"
#include "backend/cuda/kernels/linear/splitk/splitk_loader.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Adds up the segments' sums of four outputs of one token, in order. Those of a block's first segment lie at `at`, the
// next ones group_bytes further on.
template <int kGroups>
__device__ __forceinline__ float4 add_segments(std::uint32_t at, int group_bytes, int segments) {
  float4 parts[kMaxSegments];
#pragma unroll
  for (int s = 0; s < kMaxSegments; ++s) {
    if (s >= segments) break;
    const std::uint32_t own = at + s % kGroups * group_bytes;
    parts[s] = segments == kGroups ? load_shared_float4(own)
                                   : load_cluster_float4(block_address(own, static_cast<unsigned>(s / kGroups)));
  }
#pragma unroll
  for (int s = 1; s < kMaxSegments; ++s) {
    if (s >= segments) break;
    parts[0].x += parts[s].x;
    parts[0].y += parts[s].y;
    parts[0].z += parts[s].z;
    parts[0].w += parts[s].w;
  }
  return parts[0];
}

__device__ __forceinline__ void store_outputs(const LinearProblem& q, std::int64_t at, float4 v) {
  if (q.float_output) {
    float* y = static_cast<float*>(q.y) + at;
    if (q.wide_stores) {
      *reinterpret_cast<float4*>(y) = v;
    } else {
      y[0] = v.x, y[1] = v.y, y[2] = v.z, y[3] = v.w;
    }
    return;
  }
  const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  auto* y = static_cast<__nv_bfloat16*>(q.y) + at;
  if (q.wide_stores) {
    *reinterpret_cast<uint2*>(y) = *reinterpret_cast<const uint2*>(pairs);
  } else {
    y[0] = pairs[0].x, y[1] = pairs[0].y, y[2] = pairs[1].x, y[3] = pairs[1].y;
  }
}

template <int kTokens, int kGroups, int kRows>
struct SplitKConsumer {
  using Shape = SplitKShape<kTokens, kGroups, kRows>;
  using Mma = Wgmma<kTokens>;
  static constexpr int kValues = Shape::kValues;

  const LinearParams& p;
  const SplitKUnit& unit;
  SplitKLoader<kTokens, kRows, Shape::kLoaderWarps>& loader;  // this block's, where it has no warp
  int group;                                                  // number among the block's segments
  int warp;                                                   // number in the warpgroup
  int lane;
  Ring ring{};

  // The row tile's weights in the current stage.
  __device__ __forceinline__ std::uint32_t weights() const {
    return unit.slot(ring.stage) + (kRows > 1 ? unit.row * unit.tile_bytes : 0);
  }
  __device__ __forceinline__ void wait_full(int stage) const {
    barrier_wait(unit.full + ring.stage * 8, ring.parity);
    if constexpr (Shape::kLoaderWarps) {
      if (stage < unit.slots) barrier_wait(unit.first_inputs(ring.stage), 0);
    }
  }
  // A barrier that the compiler does not know counts as all sixteen, of which a multiprocessor has enough for four
  // blocks only.
  __device__ __forceinline__ void sync_group() const {
    if constexpr (kGroups == 1) {
      sync();
    } else {
      asm volatile("bar.sync %0, 128;\n" ::"r"(2 + group) : "memory");
    }
  }
  __device__ __forceinline__ static void sync() {
    asm volatile("bar.sync 1, %0;\n" ::"n"(Shape::kConsumers) : "memory");
  }

  // The products of the stage before stage `i`, which is the ring's current one, have ended. Every lane arrives, since
  // race checkers do not see an arrival after __syncwarp() as that of the other lanes too.
  __device__ __forceinline__ void release_before(int i) {
    if (i == 0) return;
    barrier_arrive(unit.empty + (ring.stage > 0 ? ring.stage - 1 : unit.slots - 1) * 8);
    if constexpr (!Shape::kLoaderWarps) {
      if (warp == 0 && (kRows == 1 || unit.row == 0)) {
        if (elected_lane() && loader.more()) loader.refill();
        __syncwarp();
      }
    }
  }

  // The matrix instruction's columns: 16 inputs of every token, `step` steps into the current stage.
  __device__ __forceinline__ std::uint64_t columns(int step) const {
    return wgmma_tile(unit.slot(ring.stage) + kRows * unit.tile_bytes, step);
  }

  __device__ __forceinline__ void sum_bf16(float (&sum)[kValues]) {
    for (int stage = 0; stage < unit.stages(); ++stage) {
      wait_full(stage);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) Mma::bf16(sum, wgmma_tile(weights(), step), columns(step), true);
      wgmma_commit();
      wgmma_wait<1>();
      release_before(stage);
      ring.advance(unit.slots);
    }
    wgmma_wait<0>();
    wgmma_hold(sum);
  }

  // Registers of the A operand for kWideInputs inputs.
  static constexpr int kWideValues = Shape::kWideInputs / 4;
  static constexpr int kStepsPerBlock = kScaleBlockInputs / Shape::kWideInputs;
  static constexpr int kStepsPerStage = kStageInputs / Shape::kWideInputs;

  // Step `step` of a scale block. Its codes are widened while the products of the step before run.
  __device__ __forceinline__ void step_wide(float (&sum)[kValues], std::uint32_t (&a)[kWideValues],
                                            std::uint32_t factors, int block, int step) {
    constexpr int kLoads = kWideValues / 8;  // loads of 16 codes a lane
    const int step_of_stage = step % kStepsPerStage;
    const int stage = (block * kStepsPerBlock + step) / kStepsPerStage;
    if (step_of_stage == 0) wait_full(stage);
    const std::uint32_t codes_at = weights() + step_of_stage * kLoads * kWarpgroup * 16 + (warp * 32 + lane) * 16;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const uint4 codes = load_shared_uint4(codes_at + i * kWarpgroup * 16);
      widen(codes.x, codes.y, factors, a + 8 * i);
      widen(codes.z, codes.w, factors, a + 8 * i + 4);
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kWideValues / 4; ++k) {
      Mma::bf16_registers(sum, a + 4 * k, columns(step_of_stage * (kWideValues / 4) + k), true);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step_of_stage == 0) release_before(stage);
    if (step_of_stage + 1 == kStepsPerStage) ring.advance(unit.slots);
  }

  __device__ __forceinline__ void sum_wide(float (&sum)[kValues], float scales) {
    std::uint32_t even[kWideValues], odd[kWideValues];
    for (int block = 0; block < unit.blocks; ++block) {
      if (block > 0 && block % 32 == 0) scales = lane_scales(block);
      const std::uint32_t factors = widening_factors(__shfl_sync(0xffffffffU, scales, block % 32));
#pragma unroll
      for (int step = 0; step < kStepsPerBlock; step += 2) {
        step_wide(sum, even, factors, block, step);
        step_wide(sum, odd, factors, block, step + 1);
      }
    }
    wgmma_wait<0>();
    wgmma_hold(sum);
  }

  // Sums of 128 inputs, scaled and added up.
  __device__ __forceinline__ void sum_products(float (&sum)[kValues], float scales) {
    const std::uint32_t token_scales = kRows * unit.tile_bytes + kSplitKBoxBytes<kTokens> + lane % 4 * 8;
    for (int block = 0; block < unit.blocks; ++block) {
      if (block > 0 && block % 32 == 0) scales = lane_scales(block);
      const float weight = __shfl_sync(0xffffffffU, scales, block % 32);
      float product[kValues];
      wait_full(block);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kE4m3Steps; ++step) {
        WgmmaE4m3<kTokens>::run(product, wgmma_tile(weights(), step), columns(step), step > 0);
      }
      wgmma_commit();
      const std::uint32_t at = unit.slot(ring.stage) + token_scales;
      wgmma_wait<0>();
      wgmma_hold(product);
#pragma unroll
      for (int i = 0; i < kValues; i += 4) {
        const float2 tokens = load_shared_float2(at + i * 8);
        const float even = weight * tokens.x;
        const float odd = weight * tokens.y;
        sum[i] = __fmaf_rn(product[i], even, sum[i]);
        sum[i + 1] = __fmaf_rn(product[i + 1], odd, sum[i + 1]);
        sum[i + 2] = __fmaf_rn(product[i + 2], even, sum[i + 2]);
        sum[i + 3] = __fmaf_rn(product[i + 3], odd, sum[i + 3]);
      }
      // Loads of the scales end before the copy engine writes the next ones: the compiler starts them before the
      // arrival but does not wait for them.
      fence_async_proxy();
      ring.advance(unit.slots);
      release_before(block + 1);
    }
  }

  // The scales of 32 blocks of 128 inputs from `first` on, one a lane. A row tile beyond the problem's last has those
  // of the last one, as it has its weights.
  __device__ __forceinline__ float lane_scales(int first) const {
    const LinearProblem& q = *unit.q;
    if (q.kind == TileKind::kBf16 || first + lane >= unit.blocks) return 0.0F;
    const int row_tile = kRows > 1 ? min(unit.row_tile, q.row_tiles - 1) : unit.row_tile;
    return __ldg(q.scales + std::int64_t{row_tile} * q.scale_blocks + unit.first_block + first + lane);
  }

  // Multiplies the segment and leaves the sums where the ring was.
  __device__ __forceinline__ void multiply(float scales) {
    float sum[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) sum[i] = 0.0F;
    if (unit.q->kind == TileKind::kBf16) {
      sum_bf16(sum);
    } else if (!Shape::kTakesCodes || unit.q->kind == TileKind::kFp8) {
      sum_wide(sum, scales);
    } else {
      if constexpr (Shape::kTakesCodes) sum_products(sum, scales);
    }
    sync_group();  // every warp has finished with the ring
    const std::uint32_t to = unit.ring + (kRows > 1 ? unit.row * Shape::kSumBytes : 0) + (warp * 16 + lane / 4) * 4;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int token = i / 4 * 8 + 2 * (lane % 4) + i % 2;
      asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(to + token * Shape::kSumRowBytes + i % 4 / 2 * 32), "f"(sum[i])
                   : "memory");
    }
  }

  // This block's share of the outputs, four of a token a thread. The sums of all segments are there.
  __device__ __forceinline__ void store(int rank, std::uint32_t first_ring, int group_bytes) const {
    constexpr int kPieces = kRowTile / 4;
    const int pieces = min(p.item_tokens, p.tokens - unit.first_token) * kPieces;
    int first = rank * Shape::kConsumers + static_cast<int>(threadIdx.x);
    if constexpr (kRows > 1) {
      first = rank * kWarpgroup + warp * 32 + lane;
      first_ring += unit.row * Shape::kSumBytes;
      if (unit.row_tile >= unit.q->row_tiles) return;
    }
    for (int i = first; i < pieces; i += p.segments * kWarpgroup) {
      const int token = i / kPieces;
      const int output = i % kPieces * 4;
      store_outputs(
          *unit.q, (unit.first_token + token) * unit.q->y_stride + unit.row_tile * kRowTile + output,
          add_segments<kGroups>(first_ring + token * Shape::kSumRowBytes + output * 4, group_bytes, p.segments));
    }
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
