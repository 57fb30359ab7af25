// RMS norm of wide rows.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/linear/shared/round_values.cuh"
#include "backend/cuda/kernels/norm/rounded_norm.h"
#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kNormThreads = 128;
// Units of eight values that a thread asks for at once: all of a row of up to 2,048.
inline constexpr int kUnitsAhead = 2;

// A block per token; the row [width] lies in dynamic shared memory as BF16, so that x is read once and y
// may be x. kWide: rows are read and written 8 values at a time (width % 8 == 0, 16-byte aligned arrays). kRounded,
// with kWide and width % 128 == 0 alone: y is rounded as a linear's input (round_values.cuh) on top. kEncoded:
// likewise, as codes and scales.
enum class NormOutput : std::uint8_t { kPlain, kRounded, kEncoded };
template <bool kWide, NormOutput kOutput>
__global__ __launch_bounds__(kNormThreads) void rms_norm_kernel(const __grid_constant__ RmsNormParams p,
                                                                const EncodedRows encoded) {
  allow_dependents();
  extern __shared__ uint4 shared_row[];
  auto* row = reinterpret_cast<bf16*>(shared_row);
  const int width = p.width;
  const std::int64_t first = std::int64_t{blockIdx.x} * width;
  const int thread = static_cast<int>(threadIdx.x);
  const auto* from = reinterpret_cast<const uint4*>(p.x + first) + thread;
  const int units = kWide ? width / 8 : 0;
  // Weights do not depend on earlier kernels.
  uint4 first_weights[kUnitsAhead] = {};
#pragma unroll
  for (int i = 0; i < kUnitsAhead; ++i) {
    if (thread + i * kNormThreads < units) {
      first_weights[i] = reinterpret_cast<const uint4*>(p.weight)[thread + i * kNormThreads];
    }
  }
  have_ready(from);
  wait_for_predecessors();
  if constexpr (kWide) {
    uint4 ahead[kUnitsAhead] = {};
#pragma unroll
    for (int i = 0; i < kUnitsAhead; ++i) {
      if (thread + i * kNormThreads < units) ahead[i] = from[i * kNormThreads];
    }
#pragma unroll
    for (int i = 0; i < kUnitsAhead; ++i) {
      if (thread + i * kNormThreads < units) shared_row[thread + i * kNormThreads] = ahead[i];
    }
    for (int i = thread + kUnitsAhead * kNormThreads; i < units; i += kNormThreads) shared_row[i] = from[i - thread];
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
  if constexpr (kWide) {
    const auto* weight = reinterpret_cast<const uint4*>(p.weight);
    auto* y = reinterpret_cast<uint4*>(p.y + first);
    for (int i = thread; i < units; i += kNormThreads) {
      const uint4 x = shared_row[i];
      const int turn = i / kNormThreads;
      static_assert(kUnitsAhead == 2);
      const uint4 w = turn == 0 ? first_weights[0] : turn == 1 ? first_weights[1] : weight[i];
      const uint4 values = make_uint4(normalized_pair(x.x, scale, w.x), normalized_pair(x.y, scale, w.y),
                                      normalized_pair(x.z, scale, w.z), normalized_pair(x.w, scale, w.w));
      if constexpr (kOutput == NormOutput::kEncoded) {
        const EncodedInputs unit = encode_block(values, block_members());
        reinterpret_cast<uint2*>(encoded.codes + first)[i] = unit.codes;
        if (i % kRoundingLanes == 0) {
          encoded.scales[std::int64_t{i / kRoundingLanes} * encoded.scale_stride + blockIdx.x] = unit.scale();
        }
      } else {
        y[i] = kOutput == NormOutput::kRounded ? round_block(values, block_members()) : values;
      }
    }
  } else {
    for (int i = thread; i < width; i += kNormThreads) {
      p.y[first + i].bits = static_cast<std::uint16_t>(normalized(row[i].bits, scale, p.weight[i].bits));
    }
  }
}

}  // namespace dsv4rt::cuda
