// Norm weights and rotation of a row whose values lie across threads, thread `quad` of the row holding values
// 4 * quad .. 4 * quad + 3. Both are fetched before the values arrive, so that nothing waits for them.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

// Sum over i of row[i]^2 in the order of sum_in_chains, from shared memory. Called by whole warps. Only the
// additions wait for each other.
__device__ inline float sum_of_squares(const float* row, int dim) {
  constexpr int kPlaces = kIndexHeadDim / kSumChains;
  const float* chain = row + static_cast<int>(threadIdx.x) % kSumChains;
  float sum = 0.0F;
#pragma unroll 4
  for (int first = 0; first < dim; first += kIndexHeadDim) {
    float square[kPlaces];
#pragma unroll
    for (int i = 0; i < kPlaces; ++i)
      square[i] = __fmul_rn(chain[first + i * kSumChains], chain[first + i * kSumChains]);
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) sum = __fadd_rn(sum, square[i]);
  }
  return fold_chains(sum);
}

struct RowFinish {
  uint2 weights{};  // four BF16 values
  Rotation rotation[2];
  bool normalizes = false;
  bool rotates = false;

  RowFinish() = default;
  // norm_weight [dim] or null. Called by whole warps of the dim / 4 threads.
  __device__ RowFinish(const bf16* norm_weight, const RopeParams& rope, std::int32_t position, int dim, int quad) {
    const int first_rotated = (dim - kRopeDim) / 4;  // a multiple of 16
    normalizes = norm_weight != nullptr;
    if (normalizes) weights = reinterpret_cast<const uint2*>(norm_weight)[quad];
    rotates = rope.inverse_frequency != nullptr && quad >= first_rotated;
    // The last 16 lanes of the last warp rotate: every lane computes a pair, two of which each of them takes.
    if (rope.inverse_frequency == nullptr || __shfl_sync(kFullWarp, quad, 31) < first_rotated) return;
    const int lane = quad % 32;
    const Rotation own = rotation_of(rope, position, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rotation[i] = {.cosine = __shfl_sync(kFullWarp, own.cosine, (2 * lane + i) % 32),
                     .sine = __shfl_sync(kFullWarp, own.sine, (2 * lane + i) % 32)};
    }
  }

  // v <- the thread's four values of `row` [dim], normalized, rotated and rounded to BF16. `row` lies in shared
  // memory and is complete. Called by whole warps; each sums the row for itself, which costs less than a barrier.
  __device__ void apply(const float* row, int dim, float eps, int quad, float (&v)[4]) const {
    const float4 own = reinterpret_cast<const float4*>(row)[quad];
    v[0] = own.x;
    v[1] = own.y;
    v[2] = own.z;
    v[3] = own.w;
    if (normalizes) {
      // Division by a power of two is an exact product.
      const float mean = __fmul_rn(sum_of_squares(row, dim), dim == kHeadDim ? 1.0F / kHeadDim : 1.0F / kIndexHeadDim);
      const float scale = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, eps)));
      v[0] = round_value(__fmul_rn(__fmul_rn(v[0], scale), low_value(weights.x)));
      v[1] = round_value(__fmul_rn(__fmul_rn(v[1], scale), high_value(weights.x)));
      v[2] = round_value(__fmul_rn(__fmul_rn(v[2], scale), low_value(weights.y)));
      v[3] = round_value(__fmul_rn(__fmul_rn(v[3], scale), high_value(weights.y)));
    }
    if (rotates) {
      rotate_pair(rotation[0], v[0], v[1]);
      rotate_pair(rotation[1], v[2], v[3]);
    }
    __syncwarp();
  }
};

}  // namespace dsv4rt::cuda
