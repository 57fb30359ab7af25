// The normalized Walsh-Hadamard transform of index keys and queries.
#pragma once

#include "backend/cuda/kernels/common/reduce.cuh"
#include "dsv4rt/row_geometry.h"

namespace dsv4rt::cuda {

// A warp transforms one vector of kIndexHeadDim values, lane l holding values 4 * l .. 4 * l + 3. FP32
// butterflies from stride 1 up, one scaling, rounded to BF16: the CPU backend's steps.
__device__ inline void hadamard_bf16(float (&v)[4]) {
  static_assert(kIndexHeadDim == 128);
  constexpr float kScale = 0x1.6a09e6p-4F;  // 128^-0.5
#pragma unroll
  for (int stride = 1; stride < 4; stride *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & stride) != 0) continue;
      const float a = v[i];
      const float b = v[i + stride];
      v[i] = __fadd_rn(a, b);
      v[i + stride] = __fsub_rn(a, b);
    }
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(kFullWarp, v[i], distance);
      v[i] = (lane & distance) != 0 ? __fsub_rn(other, v[i]) : __fadd_rn(v[i], other);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = round_to_bf16(__fmul_rn(v[i], kScale));
}

}  // namespace dsv4rt::cuda
