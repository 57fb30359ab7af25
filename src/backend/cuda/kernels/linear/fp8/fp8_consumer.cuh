// A consumer of the E4M3 kernel: a warpgroup that multiplies 64 tokens by one row tile or two, scales and adds the
// sums of every 128 inputs, and stores.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/wgmma_e4m3.cuh"
#include "backend/cuda/kernels/linear/fp8/fp8_store.cuh"
#include "backend/cuda/kernels/linear/shared/items.cuh"

namespace dsv4rt::cuda {

// Shared-memory addresses.
struct Fp8Memory {
  std::uint32_t stages;   // [p.stages][kStageBytes]: inputs, then weights
  std::uint32_t buffers;  // totals over segments of each warpgroup, then outputs on their way
  std::uint32_t scales;   // [p.stages][tokens]
  std::uint32_t full;     // [kMaxStages] barriers
  std::uint32_t empty;    // [kMaxStages]
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kTokenGroups, int kRowGroups>
struct Fp8Consumer {
  using Shape = Fp8Shape<kTokenGroups, kRowGroups>;
  static constexpr int kValues = Shape::kValues;
  static constexpr int kTiles = Shape::kGroupTiles;

  const PrefillParams& p;
  const Fp8Memory& m;
  int group;
  int warp;  // number in the warpgroup
  int lane;
  Ring ring;

  // The warpgroup's number among those of the same tokens, and among those of the same outputs.
  __device__ __forceinline__ int row_group() const { return kRowGroups > 1 ? group % kRowGroups : 0; }
  __device__ __forceinline__ int token_group() const { return group / kRowGroups; }

  // The scales of a row tile's weights. One beyond the problem's last has those of the last one, as it has its weights,
  // and is not stored.
  __device__ __forceinline__ static const float* scales_of(const LinearProblem& q, int row_tile) {
    return q.scales + std::int64_t{min(row_tile, q.row_tiles - 1)} * q.scale_blocks;
  }

  // Blocks first .. end - 1 of 128 inputs, a segment.
  __device__ __forceinline__ void sum_segment(float (&sum)[kValues], const float* const (&scales)[kTiles], int first,
                                              int end) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) sum[i] = 0.0F;
    float weight[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) weight[tile] = __ldg(scales[tile] + first);
    for (int block = first; block < end; ++block) {
      barrier_wait(m.full + ring.stage * 8, ring.parity);
      const std::uint32_t inputs = m.stages + ring.stage * Shape::kStageBytes;
      const std::uint32_t a = inputs + token_group() * (kFp8GroupTokens * kStageBytesOfInput);
      const std::uint32_t b = inputs + Shape::kInputBytes + row_group() * (kTiles * kFp8TileBytes);
      float product[kValues];
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kE4m3Steps; ++step) {
        WgmmaE4m3<Shape::kColumns>::run(product, wgmma_tile(a, step), wgmma_tile(b, step), step > 0);
      }
      wgmma_commit();
      // While they run: the scales of tokens l / 4 and l / 4 + 8.
      const std::uint32_t at =
          m.scales + ring.stage * Shape::kScaleBytes + (token_group() * kFp8GroupTokens + warp * 16 + lane / 4) * 4;
      float token[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(token[i]) : "r"(at + i * 32) : "memory");
      }
      float factors[kTiles][2];
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) factors[i / 2][i % 2] = weight[i / 2] * token[i % 2];
      wgmma_wait<0>();
      wgmma_hold(product);
      fence_async_proxy();  // loads of the scales end before the copy engine writes the next ones
      __syncwarp();
      if (lane == 0) barrier_arrive(m.empty + ring.stage * 8);  // 32 arrivals of a warp would take turns
      ring.advance(p.stages);
      // The weights' next scales: not before the fence, which would wait for them.
      const int next = min(block + 1, end - 1);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) weight[tile] = __ldg(scales[tile] + next);
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        sum[i] = __fmaf_rn(product[i], factors[i / (kValues / kTiles)][i % 4 / 2], sum[i]);
      }
    }
  }

  // Totals of a thread lie by fours, [kValues / 4][128 threads].
  __device__ __forceinline__ std::uint32_t totals() const {
    return m.buffers + group * Shape::kTotalBytes + (warp * 32 + lane) * 16;
  }
  __device__ __forceinline__ void store_totals(const float (&sum)[kValues]) const {
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      store_shared(totals() + i * (kWarpgroup * 4), make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]));
    }
  }
  // Adds the segment to what those before have come to.
  __device__ __forceinline__ void add_totals(float (&sum)[kValues]) const {
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      const float4 total = load_shared_float4(totals() + i * (kWarpgroup * 4));
      sum[i] = total.x + sum[i];
      sum[i + 1] = total.y + sum[i + 1];
      sum[i + 2] = total.z + sum[i + 2];
      sum[i + 3] = total.w + sum[i + 3];
    }
  }

  __device__ __forceinline__ void run_item(int index) {
    const LinearItem item = linear_item(p, index);
    const LinearProblem& q = p.problems[item.problem];
    const int row_tile = item.row_group * kFp8RowTiles + row_group() * kTiles;
    const float* scales[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) scales[tile] = scales_of(q, row_tile + tile);
    const Fp8Store<kTiles> store{q,
                                 &p.outputs[item.problem],
                                 p.output_scales[item.problem],
                                 p.output_scale_stride,
                                 p.tokens,
                                 m.buffers + group * (p.segments > 1 ? Shape::kTotalBytes : Shape::kOutputBytes),
                                 1 + group,
                                 warp,
                                 lane};
    float sum[kValues];
    for (int segment = 0; segment < p.segments; ++segment) {
      sum_segment(sum, scales, q.scale_blocks * segment / p.segments, q.scale_blocks * (segment + 1) / p.segments);
      if (segment == 0) store.wait_for_buffer();
      if (segment > 0) add_totals(sum);
      if (segment + 1 < p.segments) store_totals(sum);
    }
    if (p.segments > 1) store.sync_warpgroup();  // all have read their totals
    store.run(row_tile, item.token_tile * Shape::kTokens + token_group() * kFp8GroupTokens, sum);
  }

  __device__ __forceinline__ void run() {
    const int blocks = static_cast<int>(gridDim.x);
    for (int round = 0;; ++round) {
      const int index = item_of_round(round, static_cast<int>(blockIdx.x), blocks);
      if (index >= p.items) break;
      run_item(index);
    }
    if (warp == 0 && elected_lane()) wait_stores_read<0>();  // shared memory ends with the block
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
