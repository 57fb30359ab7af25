// The rotation of heads alone.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

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

inline constexpr int kRotateThreads = 128;
inline constexpr int kThreadsOfHead = kRopeDim / 8;
inline constexpr int kRotateHeads = 4 * kRotateThreads / kThreadsOfHead;  // per block

// Block: (token, kRotateHeads heads); 8 threads a head. Padding stays as it is: position 0 rotates nothing.
__global__ __launch_bounds__(kRotateThreads) void rotate_heads_kernel(const __grid_constant__ RotateHeadsParams p) {
  __shared__ Rotation rotations[kRotatedPairs];
  const std::int64_t token = blockIdx.x;
  if (p.step.token_sequence[token] < 0) return;
  load_rotations(p.rope, p.step.token_position[token], rotations);
  __syncthreads();

  const int part = static_cast<int>(threadIdx.x) % kThreadsOfHead;
  const int first = static_cast<int>(blockIdx.y) * kRotateHeads + static_cast<int>(threadIdx.x) / kThreadsOfHead;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = first + i * (kRotateThreads / kThreadsOfHead);
    if (head >= p.heads) return;
    auto* at = reinterpret_cast<uint4*>(p.x + (token * p.heads + head + 1) * p.head_dim - kRopeDim) + part;
    float v[8];
    unpack8(*at, v);
    rotate8(rotations, 4 * part, v);
    *at = pack8(v);
  }
}

}  // namespace dsv4rt::cuda
