// Norm and rotation of query heads.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kQueryWarps = 4;
inline constexpr int kQueryHeads = 2 * kQueryWarps;  // per block

// Squares of a warp's two heads: 32 rows of 16, padded so that the writes and the columns that the two
// half-warps read spread over the banks.
inline constexpr int kSquareRow = kSumChains + 1;
inline constexpr int kSquaresOfHead = 32 * kSquareRow + 16;

// Eight BF16 values of 16 bytes as floats, and back; rounding has happened before pack8.
__device__ inline void unpack8(const uint4& packed, float (&v)[8]) {
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(words[i] << 16U);
    v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
  }
}

__device__ inline uint4 pack8(const float (&v)[8]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = (__float_as_uint(v[2 * i]) >> 16U) | (__float_as_uint(v[2 * i + 1]) & 0xffff0000U);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The rotations of one position, shared by the block's heads.
__device__ inline void load_rotations(const RopeParams& rope, std::int32_t position, Rotation* rotations) {
  if (rope.inverse_frequency != nullptr && threadIdx.x < kRotatedPairs) {
    rotations[threadIdx.x] = rotation_of(rope, position, static_cast<int>(threadIdx.x));
  }
}

// Four pairs starting at `first_pair`.
__device__ inline void rotate8(const Rotation* rotations, int first_pair, float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) rotate_pair(rotations[first_pair + i], v[2 * i], v[2 * i + 1]);
}

// Sum over a head's b(x * x) for two heads at once: half-warp h folds the 16 chains of head h. The value
// with index i joins chain i % 16 at place i / 16, the order of sum_in_chains.
__device__ inline float sum_squares_of_two(const float (&v)[2][2][8], float* squares) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int head = 0; head < 2; ++head) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* at = squares + head * kSquaresOfHead + (16 * half + lane / 2) * kSquareRow + lane % 2 * 8;
#pragma unroll
      for (int i = 0; i < 8; ++i) at[i] = round_to_bf16(__fmul_rn(v[head][half][i], v[head][half][i]));
    }
  }
  __syncwarp();
  const float* column = squares + lane / 16 * kSquaresOfHead + lane % 16;
  float sum = 0.0F;
#pragma unroll 8
  for (int row = 0; row < 32; ++row) sum = __fadd_rn(sum, column[row * kSquareRow]);
  return fold_chains(sum);
}

// Block: (token, kQueryHeads heads); a warp takes two heads, a lane values 8 * lane .. and 256 + 8 * lane ..
__global__ __launch_bounds__(32 * kQueryWarps) void query_kernel(const __grid_constant__ QueryParams p) {
  __shared__ float squares[kQueryWarps][2 * kSquaresOfHead];
  __shared__ Rotation rotations[kRotatedPairs];
  const std::int64_t token = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_head = static_cast<int>(blockIdx.y) * kQueryHeads + 2 * warp;
  const bool real = p.step.token_sequence[token] >= 0;
  if (real) load_rotations(p.rope, p.step.token_position[token], rotations);
  __syncthreads();

  auto* q = reinterpret_cast<uint4*>(p.q + (token * p.heads + first_head) * kHeadDim);
  constexpr int kHeadWords = kHeadDim / 8;
  float v[2][2][8];
#pragma unroll
  for (int head = 0; head < 2; ++head) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool present = real && first_head + head < p.heads;
      unpack8(present ? q[head * kHeadWords + 32 * half + lane] : uint4{}, v[head][half]);
    }
  }
  const float mean = round_to_bf16(__fdiv_rn(sum_squares_of_two(v, squares[warp]), static_cast<float>(kHeadDim)));
  const float own_scale = round_to_bf16(__fdiv_rn(1.0F, __fsqrt_rn(round_to_bf16(__fadd_rn(mean, p.eps)))));
#pragma unroll
  for (int head = 0; head < 2; ++head) {
    const float scale = __shfl_sync(kFullWarp, own_scale, 16 * head);
    if (first_head + head >= p.heads) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float (&values)[8] = v[head][half];
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = real ? round_to_bf16(__fmul_rn(values[i], scale)) : 0.0F;
      constexpr int kFirstRotatedLane = (kNopeDim - kHeadDim / 2) / 8;
      if (half == 1 && lane >= kFirstRotatedLane && real && p.rope.inverse_frequency != nullptr) {
        rotate8(rotations, 4 * (lane - kFirstRotatedLane), values);
      }
      q[head * kHeadWords + 32 * half + lane] = pack8(values);
    }
  }
}

}  // namespace dsv4rt::cuda
