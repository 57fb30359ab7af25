// The order of scores on the device, and the digit by which rows are counted first.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/indexer_topk/select_state.h"

namespace dsv4rt::cuda {

// As cpu::score_rank(), without a branch, but NaN takes 1, which no number has.
__device__ inline std::uint32_t rank_of(float score) {
  const auto bits = static_cast<std::int32_t>(__float_as_uint(__fadd_rn(score, 0.0F)));  // -0 + 0 = +0
  const std::uint32_t rank = static_cast<std::uint32_t>(bits) ^ (static_cast<std::uint32_t>(bits >> 31) | 0x80000000U);
  return isnan(score) ? 1U : rank;
}
__device__ inline std::uint32_t first_digit(std::uint32_t rank) {
  return rank >> (32 - kRankDigitBits);
}

}  // namespace dsv4rt::cuda
