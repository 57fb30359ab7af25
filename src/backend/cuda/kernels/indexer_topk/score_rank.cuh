// The order of scores on the device, and the digit by which rows are counted first.
#pragma once

#include <cstdint>

#include "backend/cpu/top_k.h"
#include "backend/cuda/kernels/indexer_topk/select_state.h"

namespace dsv4rt::cuda {

// NaN takes 1, which no number has.
__device__ inline std::uint32_t rank_of(float score) {
  return max(cpu::score_rank(score), 1U);
}
__device__ inline std::uint32_t first_digit(std::uint32_t rank) {
  return rank >> (32 - kRankDigitBits);
}

}  // namespace dsv4rt::cuda
