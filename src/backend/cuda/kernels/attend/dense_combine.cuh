// The splits of dense_plan.cuh to outputs: a token's sums, scaled to one power, added in the splits' order, divided by
// the sum of its weights and its sink, turned and rounded.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/dense_plan.cuh"
#include "backend/cuda/kernels/attend/softmax_math.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"

namespace dsv4rt::cuda {

inline constexpr int kCombineThreads = 256;
inline constexpr int kCombineHeads = 16;  // heads of a block: those of one warp of the other kernel
// Blocks for 64 heads of a token: each warp of a block takes one quad of every thread of such a warp.
inline constexpr int kCombineBlocks = kSplitQuads / kCombineThreads;

// 2^exponent for integers up to 0; zero below the normal range.
__device__ inline float power_of_two(float exponent) {
  return exponent >= -126.0f ? __int_as_float((127 + static_cast<int>(exponent)) << 23) : 0.0f;
}

struct CombineShared {
  float2 state[DenseSplits::kMost][kCombineHeads];  // power and sum of weights
  float factor[DenseSplits::kMost][kCombineHeads];  // factors of the splits' sums
  float inverse[kCombineHeads];                     // 1 / the sum of all weights
};
inline constexpr int kCombineAtOnce = 16;  // splits whose sums are on their way at the same time

// A load that stays where it is.
__device__ inline float4 load_sums(const float4* from) {
  float4 sums;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];\n"
               : "=f"(sums.x), "=f"(sums.y), "=f"(sums.z), "=f"(sums.w)
               : "l"(__cvta_generic_to_global(from)));
  return sums;
}

// Splits from `begin` on, the last one again in place of those that are not there.
__device__ inline void load_splits(const float4* from, int begin, int count, float4 (&sums)[kCombineAtOnce]) {
#pragma unroll
  for (int i = 0; i < kCombineAtOnce; ++i) {
    sums[i] = load_sums(from + std::int64_t{min(begin + i, count - 1)} * kSplitQuads);
  }
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
  const int lane = thread % 32;
  const int first_head = part % 4 * kCombineHeads;
  const int quad = part / 4 * (kCombineThreads / 32) + thread / 32;  // warpgroup * kSumQuads + its quad
  const int value = quad * 8 + lane % 4 * 2;
  const bool turned = p.output_rope.inverse_frequency != nullptr && value >= kNopeDim;
  Rotation rotation;
  if (turned) rotation = rotation_of(p.output_rope, rows.place.position, (value - kNopeDim) / 2);
  wait_for_predecessors();
  if (!rows.is_dense()) return;
  const DenseSplits splits(rows.count);
  const std::int64_t first = (std::int64_t{blockIdx.y} * pass.groups + group) * pass.splits;
  const float4* from = pass.sums + first * kSplitQuads + quad * 128 + part % 4 * 32 + lane;
  float4 sums[kCombineAtOnce];
  load_splits(from, 0, splits.count, sums);
  // A thread for a head of a split.
  const int head = thread % kCombineHeads;
  const int split = thread / kCombineHeads;
  const int sink_head = group * kTileHeads + first_head + head;
  const float sink = sink_head < p.heads ? p.sink[sink_head] : 0.0f;
  constexpr int kStep = kCombineThreads / kCombineHeads;
  for (int s = split; s < splits.count; s += kStep) {
    shared.state[s][head] = pass.states[(first + s) * kTileHeads + first_head + head];
  }
  __syncthreads();
  float power = kNoPower;
  for (int s = 0; s < splits.count; ++s) power = fmaxf(power, shared.state[s][head].x);
  for (int s = split; s < splits.count; s += kStep) {
    shared.factor[s][head] = power_of_two(shared.state[s][head].x - power);
  }
  __syncthreads();
  if (split == 0) {
    float total = 0.0f;
    for (int s = 0; s < splits.count; ++s) {
      total = __fmaf_rn(shared.state[s][head].y, shared.factor[s][head], total);
    }
    shared.inverse[head] = __frcp_rn(total + PowerReference{power}.unshifted_weight(sink));
  }
  __syncthreads();
  float o[4] = {};
#pragma unroll 1
  for (int begin = 0;;) {
#pragma unroll
    for (int i = 0; i < kCombineAtOnce; ++i) {
      if (begin + i >= splits.count) break;
      const float low = shared.factor[begin + i][lane / 4];
      const float high = shared.factor[begin + i][lane / 4 + 8];
      o[0] = __fmaf_rn(sums[i].x, low, o[0]);
      o[1] = __fmaf_rn(sums[i].y, low, o[1]);
      o[2] = __fmaf_rn(sums[i].z, high, o[2]);
      o[3] = __fmaf_rn(sums[i].w, high, o[3]);
    }
    begin += kCombineAtOnce;
    if (begin >= splits.count) break;
    load_splits(from, begin, splits.count, sums);
  }
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
    const int to = group * kTileHeads + first_head + row;
    if (to < p.heads) *reinterpret_cast<std::uint32_t*>(p.o + (token * p.heads + to) * kHeadDim + value) = values;
  }
#endif
}

}  // namespace dsv4rt::cuda
