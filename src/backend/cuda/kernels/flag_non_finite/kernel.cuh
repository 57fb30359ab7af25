// Which sequences have a row with a NaN or an infinity: a block of threads looks at one row.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kFlagThreads = 128;

// Two BF16 values; the exponent of one that is not finite is all ones.
__device__ __forceinline__ bool pair_is_finite(std::uint32_t pair) {
  constexpr std::uint32_t kExponents = 0x7f807f80U;
  return __vcmpeq2(pair & kExponents, kExponents) == 0;
}

// kWide: rows are whole multiples of 16 bytes and aligned to them.
template <bool kWide>
__global__ __launch_bounds__(kFlagThreads) void flag_non_finite_kernel(const FlagNonFiniteParams p) {
  allow_dependents();
  wait_for_predecessors();
  const std::int64_t token = blockIdx.x;
  const std::int32_t sequence = p.step.token_sequence[token];
  if (sequence < 0) return;  // padding: the whole block
  const bf16* row = p.x + token * p.width;
  bool finite = true;
  if constexpr (kWide) {
    const auto* words = reinterpret_cast<const uint4*>(row);
    for (std::int64_t i = threadIdx.x; i < p.width / 8; i += kFlagThreads) {
      const uint4 values = words[i];
      finite = finite && pair_is_finite(values.x) && pair_is_finite(values.y) && pair_is_finite(values.z) &&
               pair_is_finite(values.w);
    }
  } else {
    for (std::int64_t i = threadIdx.x; i < p.width; i += kFlagThreads) finite = finite && pair_is_finite(row[i].bits);
  }
  // Blocks of one sequence write the same value.
  if (__syncthreads_or(finite ? 0 : 1) != 0 && threadIdx.x == 0) p.flags[sequence] = 1;
}

}  // namespace dsv4rt::cuda
