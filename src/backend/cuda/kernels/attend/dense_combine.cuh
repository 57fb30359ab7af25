// What dense_plan.cuh leaves to outputs: the sums of a token's splits added in their order to those of runs, unless
// blocks have done so, those of runs, scaled to one power, added in their order, divided by the sum of its weights and
// its sink, turned and rounded.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/dense_plan.cuh"
#include "backend/cuda/kernels/attend/softmax_math.cuh"
#include "backend/cuda/kernels/attend/split_merge.cuh"
#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"

namespace dsv4rt::cuda {

inline constexpr int kCombineThreads = 256;
inline constexpr int kCombineHeads = 16;  // heads of a block: those of one warp of the other kernel
// Blocks for 64 heads of a token: each warp of a block takes one quad of every thread of such a warp.
inline constexpr int kCombineBlocks = kSplitQuads / kCombineThreads;

// kMerged: parts are runs of splits, not splits.
template <bool kMerged>
inline constexpr int kCombineParts = kMerged ? DenseSplits::kMostRuns : DenseSplits::kMost;

template <bool kMerged>
struct CombineShared {
  static constexpr int kParts = kCombineParts<kMerged>;
  float2 state[kParts][kCombineHeads];      // power and sum of weights
  float added[kParts][kCombineHeads];       // SplitMerge's factors: of the part's sums
  float kept[kParts][kCombineHeads];        // SplitMerge's other factor, if any is not one
  float run_factor[kParts][kCombineHeads];  // what a run's sums are multiplied by, where its first part is
  float power[kCombineHeads];               // the greatest of the runs'
};

// The factors and the power of head `head` where some part's power becomes its run's, by a thread.
template <bool kMerged>
__device__ inline void rescale_factors(CombineShared<kMerged>& shared, int parts, int run, int head) {
  float power = kNoPower;
  for (int begin = 0; begin < parts; begin += run) {
    float of_run = shared.state[begin][head].x;
    for (int i = begin + 1; i < min(begin + run, parts); ++i) {
      const SplitMerge merge = split_merge(of_run, shared.state[i][head].x);
      shared.kept[i][head] = merge.kept;
      shared.added[i][head] = merge.added;
      of_run = merge.power;
    }
    shared.run_factor[begin][head] = of_run;
    power = fmaxf(power, of_run);
  }
  for (int begin = 0; begin < parts; begin += run) {
    shared.run_factor[begin][head] = power_of_two(shared.run_factor[begin][head] - power);
  }
  shared.power[head] = power;
}

// A head's parts, added up one by one: of a value, or of the weights.
struct RunSums {
  float total = 0.0f;   // adds up the runs before
  float of_run = 0.0f;  // adds up the parts of the run

  __device__ void begin_run(float first, float factor_of_last) {
    total = __fmaf_rn(of_run, factor_of_last, total);
    of_run = first;
  }
  __device__ void add(float part, float added) { of_run = add_flushed(of_run, multiply_flushed(part, added)); }
  __device__ void keep(float kept) { of_run = multiply_flushed(of_run, kept); }
  [[nodiscard]] __device__ float end(float factor_of_last) const { return __fmaf_rn(of_run, factor_of_last, total); }
};

// Grid: x = kCombineBlocks * groups of 64 heads, y = tokens of the pass.
template <bool kMerged>
__global__ void __launch_bounds__(kCombineThreads, 2)
    attend_dense_combine_kernel(const __grid_constant__ AttendParams p, const __grid_constant__ DensePass pass) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kParts = kCombineParts<kMerged>;
  __shared__ CombineShared<kMerged> shared;
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
  const bool dense = rows.is_dense();
  const DenseSplits splits(dense ? rows.count : 1);
  std::int32_t parts = kMerged ? splits.runs() : splits.count;
  const std::int32_t run = kMerged ? 1 : splits.run;  // parts of a run
  const std::int64_t first = (std::int64_t{blockIdx.y} * pass.groups + group) * pass.parts;
  const float4* from = pass.sums + first * kSplitQuads + quad * 128 + part % 4 * 32 + lane;
  // A thread for a head of a part.
  const int head = thread % kCombineHeads;
  const int own = thread / kCombineHeads;
  static_assert(kParts <= kCombineThreads / kCombineHeads);
  const float2* own_state = pass.states + (first + own) * kTileHeads + first_head + head;
  std::int32_t own_run = own / run * run;          // the first part of its run
  const int first_of_two = first_head + lane / 4;  // the thread has two heads, eight apart
  float sink[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int of_token = group * kTileHeads + first_of_two + 8 * half;
    sink[half] = of_token < p.heads ? p.sink[of_token] : 0.0f;
  }
  have_ready(parts);
  have_ready(own_run);
  have_ready(from);
  have_ready(own_state);
  wait_for_predecessors();
  if (!dense) return;
  float4 sums[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (i < parts) sums[i] = load_global_quad(from + std::int64_t{i} * kSplitQuads);
  }
  if (own < parts) shared.state[own][head] = *own_state;
  __syncthreads();
  // Nearly always a run's power is its first part's.
  bool rescales = false;
  if (own < parts) {
    const float begin = shared.state[own_run][head].x;
    const SplitMerge merge = split_merge(begin, shared.state[own][head].x);
    shared.added[own][head] = merge.added;
    rescales = merge.kept != 1.0f;
  }
  float power = kNoPower;
  for (int i = 0; i < parts; i += run) power = fmaxf(power, shared.state[i][head].x);
  if (own < parts) shared.run_factor[own][head] = power_of_two(shared.state[own_run][head].x - power);
  if (own == 0) shared.power[head] = power;
  rescales = __syncthreads_or(static_cast<int>(rescales)) != 0;
  if (rescales) {
    if (own == 0) rescale_factors(shared, parts, run, head);
    __syncthreads();
  }
  // Of the thread's two heads: two neighbouring values and the weights.
  constexpr int kSums = 3;
  RunSums head_sums[2][kSums];
  float factors[2] = {0.0f, 0.0f};  // what the run before is multiplied by
  int left = 0;                     // parts of the run that are still to come
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (i >= parts) break;
    const bool begins = left == 0;
    left = begins ? run - 1 : left - 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int of_two = lane / 4 + 8 * half;
      const float part_sums[kSums] = {half == 0 ? sums[i].x : sums[i].z, half == 0 ? sums[i].y : sums[i].w,
                                      shared.state[i][of_two].y};
      if (begins) {
        for (int k = 0; k < kSums; ++k) head_sums[half][k].begin_run(part_sums[k], factors[half]);
        factors[half] = shared.run_factor[i][of_two];
      } else {
        if (rescales) {
          for (RunSums& sum : head_sums[half]) sum.keep(shared.kept[i][of_two]);
        }
        const float added = shared.added[i][of_two];
        for (int k = 0; k < kSums; ++k) head_sums[half][k].add(part_sums[k], added);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const RunSums(&own_sums)[kSums] = head_sums[half];
    const float weights = own_sums[2].end(factors[half]);
    const PowerReference reference{shared.power[lane / 4 + 8 * half]};
    const float inverse = __frcp_rn(weights + reference.unshifted_weight(sink[half]));
    std::uint32_t pair = round_pair(own_sums[0].end(factors[half]) * inverse, own_sums[1].end(factors[half]) * inverse);
    if (turned) {
      float even = low_value(pair);
      float odd = high_value(pair);
      rotate_pair(rotation, even, odd);
      pair = round_pair(even, odd);
    }
    const int to = group * kTileHeads + first_of_two + 8 * half;
    if (to < p.heads) *reinterpret_cast<std::uint32_t*>(p.o + (token * p.heads + to) * kHeadDim + value) = pair;
  }
#endif
}

}  // namespace dsv4rt::cuda
