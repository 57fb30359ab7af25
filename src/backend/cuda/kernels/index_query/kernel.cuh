// Indexer queries: RoPE, Hadamard, and the rounding that the stored keys went through.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/hadamard.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/cuda/kernels/common/row_encode.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kIndexQueryWarps = 4;
inline constexpr int kIndexQueryHeads = 4 * kIndexQueryWarps;  // per block

// Block: (token, kIndexQueryHeads heads); a warp takes every kIndexQueryWarps-th of them, four values a lane.
__global__ __launch_bounds__(32 * kIndexQueryWarps) void index_query_kernel(
    const __grid_constant__ IndexQueryParams p) {
  const std::int64_t token = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool real = p.step.token_sequence[token] >= 0;
  constexpr int kFirstRotatedLane = (kIndexHeadDim - kRopeDim) / 4;
  const bool rotates = real && lane >= kFirstRotatedLane && p.rope.inverse_frequency != nullptr;
  Rotation rotation[2];
  if (rotates) {
    const std::int32_t position = p.step.token_position[token];
#pragma unroll
    for (int i = 0; i < 2; ++i) rotation[i] = rotation_of(p.rope, position, 2 * (lane - kFirstRotatedLane) + i);
  }
  const int end = min(p.heads, static_cast<int>(blockIdx.y + 1) * kIndexQueryHeads);
  for (int head = static_cast<int>(blockIdx.y) * kIndexQueryHeads + static_cast<int>(threadIdx.x) / 32; head < end;
       head += kIndexQueryWarps) {
    auto* at = reinterpret_cast<uint2*>(p.q + (token * p.heads + head) * kIndexHeadDim) + lane;
    if (!real) {
      *at = uint2{};
      continue;
    }
    const uint2 packed = *at;
    float v[4] = {__uint_as_float(packed.x << 16U), __uint_as_float(packed.x & 0xffff0000U),
                  __uint_as_float(packed.y << 16U), __uint_as_float(packed.y & 0xffff0000U)};
    if (rotates) {
      rotate_pair(rotation[0], v[0], v[1]);
      rotate_pair(rotation[1], v[2], v[3]);
    }
    __syncwarp();
    if (p.hadamard) hadamard_bf16(v);
    round_key_quad(p.key_format, v);
    store_bf16_quad(at, v);
  }
}

}  // namespace dsv4rt::cuda
