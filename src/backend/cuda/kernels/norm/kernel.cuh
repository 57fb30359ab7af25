// RMS norm of wide rows.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kNormThreads = 128;

// A block per token; the row [width] lies in dynamic shared memory as BF16, so that x is read once and y
// may be x. kWide: rows are read and written 8 values at a time (width % 8 == 0, 16-byte aligned arrays).
template <bool kWide>
__global__ __launch_bounds__(kNormThreads) void rms_norm_kernel(const __grid_constant__ RmsNormParams p) {
  extern __shared__ uint4 shared_row[];
  auto* row = reinterpret_cast<bf16*>(shared_row);
  const int width = p.width;
  const std::int64_t first = std::int64_t{blockIdx.x} * width;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kWide) {
    const auto* x = reinterpret_cast<const uint4*>(p.x + first);
    for (int i = thread; i < width / 8; i += kNormThreads) shared_row[i] = x[i];
  } else {
    for (int i = thread; i < width; i += kNormThreads) row[i] = p.x[first + i];
  }
  __syncthreads();

  // Every warp sums the whole row, which spares a second barrier.
  const float sum = sum_in_chains(width, [row](int i) {
    const float value = to_float(row[i]);
    return __fmul_rn(value, value);
  });
  const float scale = rms_scale(sum, width, p.eps);
  const auto normalized = [scale](std::uint32_t x_bits, std::uint32_t weight_bits) {
    const float x = __uint_as_float(x_bits << 16U);
    return std::uint32_t{to_bf16(__fmul_rn(__fmul_rn(x, scale), __uint_as_float(weight_bits << 16U))).bits};
  };
  if constexpr (kWide) {
    const auto* weight = reinterpret_cast<const uint4*>(p.weight);
    auto* y = reinterpret_cast<uint4*>(p.y + first);
    const auto pair = [&](std::uint32_t x, std::uint32_t w) {
      return normalized(x & 0xffffU, w & 0xffffU) | normalized(x >> 16U, w >> 16U) << 16U;
    };
    for (int i = thread; i < width / 8; i += kNormThreads) {
      const uint4 x = shared_row[i];
      const uint4 w = weight[i];
      y[i] = make_uint4(pair(x.x, w.x), pair(x.y, w.y), pair(x.z, w.z), pair(x.w, w.w));
    }
  } else {
    for (int i = thread; i < width; i += kNormThreads) {
      p.y[first + i].bits = static_cast<std::uint16_t>(normalized(row[i].bits, p.weight[i].bits));
    }
  }
}

}  // namespace dsv4rt::cuda
