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
  // Weights do not depend on earlier kernels.
  uint4 first_weights{};
  if (kWide && thread < width / 8) first_weights = reinterpret_cast<const uint4*>(p.weight)[thread];
  wait_for_predecessors();
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
  if constexpr (kWide) {
    const auto* weight = reinterpret_cast<const uint4*>(p.weight);
    auto* y = reinterpret_cast<uint4*>(p.y + first);
    for (int i = thread; i < width / 8; i += kNormThreads) {
      const uint4 x = shared_row[i];
      const uint4 w = i == thread ? first_weights : weight[i];
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
