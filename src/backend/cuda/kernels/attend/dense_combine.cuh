// The splits of dense_plan.cuh to outputs: a token's sums, scaled to one power, added in the splits' order, divided by
// the sum of its weights and its sink, turned and rounded.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/dense_plan.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"

namespace dsv4rt::cuda {

inline constexpr int kCombineThreads = 256;
inline constexpr int kCombineHeads = 16;  // of a block: a warp's of the other kernel
// Blocks for 64 heads of a token: each warp of a block takes one quad of every thread of such a warp.
inline constexpr int kCombineBlocks = kSplitQuads / kCombineThreads;

struct CombineShared {
  float factor[DenseSplits::kMost][kCombineHeads];
  float inverse[kCombineHeads];
};

// Factors of the splits' sums, and 1 / the sum of all weights, by one thread for a head.
__device__ inline void scale_splits(const float2* states, int splits, int head, float sink, CombineShared& shared) {
  float power = kNoPower;
  for (int s = 0; s < splits; ++s) power = fmaxf(power, states[s * kSplitStates + head].x);
  float total = 0.0f;
  const int at = head % kCombineHeads;
  for (int s = 0; s < splits; ++s) {
    const float2 first = states[s * kSplitStates + head];
    const float2 second = states[s * kSplitStates + kTileHeads + head];
    const float factor = power_of_two(first.x - power);
    shared.factor[s][at] = factor;
    total = __fmaf_rn(first.y + second.y, factor, total);
  }
  shared.inverse[at] = __frcp_rn(total + exp2f(__fmaf_rn(sink, kLog2E, -power)));
}

// A load that stays where it is.
__device__ inline float4 load_sums(const float4* from) {
  float4 sums;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];\n"
               : "=f"(sums.x), "=f"(sums.y), "=f"(sums.z), "=f"(sums.w)
               : "l"(__cvta_generic_to_global(from)));
  return sums;
}

// Grid: x = kCombineBlocks * groups of 64 heads, y = tokens of the pass.
__global__ void __launch_bounds__(kCombineThreads)
    attend_dense_combine_kernel(const __grid_constant__ AttendParams p, const __grid_constant__ DensePass pass) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ CombineShared shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = static_cast<int>(blockIdx.x) / kCombineBlocks;
  const int part = static_cast<int>(blockIdx.x) % kCombineBlocks;
  const std::int64_t token = pass.first_token + static_cast<std::int64_t>(blockIdx.y);
  allow_dependents();
  const TokenRows rows = token_rows(p, token);
  wait_for_predecessors();
  if (!rows.is_dense()) return;
  const DenseSplits splits(rows.count);
  const std::int64_t first = (std::int64_t{blockIdx.y} * pass.groups + group) * pass.splits;
  const int lane = thread % 32;
  const int first_head = part % 4 * kCombineHeads;
  const int quad = part / 4 * (kCombineThreads / 32) + thread / 32;  // warpgroup * kSumQuads + its quad
  const float4* from = pass.sums + first * kSplitQuads + quad * 128 + part % 4 * 32 + lane;
  if (thread < kCombineHeads) {
    const int head = group * kTileHeads + first_head + thread;
    scale_splits(pass.states + first * kSplitStates, splits.count, first_head + thread,
                 head < p.heads ? __ldg(p.sink + head) : 0.0f, shared);
  }
  // All of them on their way before the first is needed; the last one again in place of those that are not there.
  float4 sums[DenseSplits::kMost];
#pragma unroll
  for (int s = 0; s < DenseSplits::kMost; ++s) {
    sums[s] = load_sums(from + std::int64_t{min(s, splits.count - 1)} * kSplitQuads);
  }
  __syncthreads();
  float o[4] = {};
#pragma unroll
  for (int s = 0; s < DenseSplits::kMost; ++s) {
    if (s >= splits.count) break;
    const float low = shared.factor[s][lane / 4];
    const float high = shared.factor[s][lane / 4 + 8];
    o[0] = __fmaf_rn(sums[s].x, low, o[0]);
    o[1] = __fmaf_rn(sums[s].y, low, o[1]);
    o[2] = __fmaf_rn(sums[s].z, high, o[2]);
    o[3] = __fmaf_rn(sums[s].w, high, o[3]);
  }
  const int value = quad * 8 + lane % 4 * 2;
  const bool turned = p.output_rope.inverse_frequency != nullptr && value >= kNopeDim;
  Rotation rotation;
  if (turned) rotation = rotation_of(p.output_rope, rows.place.position, (value - kNopeDim) / 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    const float inverse = shared.inverse[row];
    std::uint32_t values = pack_bf16(o[2 * half] * inverse, o[2 * half + 1] * inverse);
    if (turned) {
      float even = low_value(values);
      float odd = high_value(values);
      rotate_pair(rotation, even, odd);
      values = pack_bf16(even, odd);
    }
    const int head = group * kTileHeads + first_head + row;
    if (head < p.heads) *reinterpret_cast<std::uint32_t*>(p.o + (token * p.heads + head) * kHeadDim + value) = values;
  }
#endif
}

}  // namespace dsv4rt::cuda
