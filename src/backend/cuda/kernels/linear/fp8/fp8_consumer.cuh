// A consumer of the E4M3 kernel: a warpgroup that multiplies 64 tokens by 128 outputs, scales and adds the sums of
// every 128 inputs, and stores.
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
  std::uint32_t buffers;  // of each warpgroup: totals over segments, then outputs on their way
  std::uint32_t scales;   // [p.stages][tokens]
  std::uint32_t full;     // [kMaxStages] barriers
  std::uint32_t empty;    // [kMaxStages]
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kGroups>
struct Fp8Consumer {
  using Shape = Fp8Shape<kGroups>;
  static constexpr int kValues = Shape::kValues;

  const PrefillParams& p;
  const Fp8Memory& m;
  int group;
  int warp;  // number in the warpgroup
  int lane;
  Ring ring;

  // An item's weight scales, those of its two row tiles.
  struct WeightScales {
    const float* first;
    const float* second;
  };
  // A row tile beyond the problem's last has the weights and scales of the last one, and is not stored.
  __device__ __forceinline__ WeightScales weight_scales(const LinearProblem& q, int row_tile) const {
    const auto of = [&](int tile) { return q.scales + std::int64_t{min(tile, q.row_tiles - 1)} * q.scale_blocks; };
    return {of(row_tile), of(row_tile + 1)};
  }

  // Blocks first .. end - 1 of 128 inputs, a segment.
  __device__ __forceinline__ void sum_segment(float (&sum)[kValues], const WeightScales& weights, int first, int end) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) sum[i] = 0.0F;
    float weight[kFp8RowTiles] = {__ldg(weights.first + first), __ldg(weights.second + first)};
    for (int block = first; block < end; ++block) {
      barrier_wait(m.full + ring.stage * 8, ring.parity);
      const std::uint32_t inputs = m.stages + ring.stage * Shape::kStageBytes;
      const std::uint32_t a = inputs + group * (kWarpgroup / 2 * kStageBytesOfInput);
      const std::uint32_t b = inputs + Shape::kInputBytes;
      float product[kValues];
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kE4m3Steps; ++step) {
        WgmmaE4m3<kFp8Outputs>::run(product, wgmma_tile(a, step), wgmma_tile(b, step), step > 0);
      }
      wgmma_commit();
      // While they run: the scales of tokens l / 4 and l / 4 + 8, and the next block's of the weights.
      const std::uint32_t at = m.scales + ring.stage * Shape::kScaleBytes + (group * 64 + warp * 16 + lane / 4) * 4;
      float token[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(token[i]) : "r"(at + i * 32) : "memory");
      }
      float factors[kFp8RowTiles][2];
#pragma unroll
      for (int i = 0; i < 2 * kFp8RowTiles; ++i) factors[i / 2][i % 2] = weight[i / 2] * token[i % 2];
      const int next = min(block + 1, end - 1);
      weight[0] = __ldg(weights.first + next);
      weight[1] = __ldg(weights.second + next);
      wgmma_wait<0>();
      wgmma_hold(product);
      barrier_arrive(m.empty + ring.stage * 8);
      ring.advance(p.stages);
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        sum[i] = __fmaf_rn(product[i], factors[i / (kValues / kFp8RowTiles)][i % 4 / 2], sum[i]);
      }
    }
  }

  // Totals of a thread lie by fours, [kValues / 4][128 threads].
  __device__ __forceinline__ std::uint32_t totals() const {
    return m.buffers + group * kFp8SumBytes + (warp * 32 + lane) * 16;
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
    const int row_tile = item.row_group * kFp8RowTiles;
    const WeightScales weights = weight_scales(q, row_tile);
    const Fp8Store store{q,         &p.outputs[item.problem],
                         p.tokens,  m.buffers + group * (p.segments > 1 ? kFp8SumBytes : kFp8OutputBytes),
                         1 + group, warp,
                         lane};
    float sum[kValues];
    for (int segment = 0; segment < p.segments; ++segment) {
      sum_segment(sum, weights, q.scale_blocks * segment / p.segments, q.scale_blocks * (segment + 1) / p.segments);
      if (segment == 0) store.wait_for_buffer();
      if (segment > 0) add_totals(sum);
      if (segment + 1 < p.segments) store_totals(sum);
    }
    if (p.segments > 1) store.sync_warpgroup();  // all have read their totals
    store.run(row_tile, item.token_tile * Shape::kTokens + group * 64, sum);
  }

  __device__ __forceinline__ void run() {
    const int blocks = static_cast<int>(gridDim.x);
    for (int round = 0;; ++round) {
      const int index = item_of_round(round, static_cast<int>(blockIdx.x), blocks);
      if (index >= p.items) break;
      run_item(index);
    }
    if (warp == 0 && lane == 0) wait_stores_read<0>();  // shared memory ends with the block
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
