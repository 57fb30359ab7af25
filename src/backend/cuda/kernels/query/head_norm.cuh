// The norm of a query head, once the sum of its squares is known.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "dsv4rt/row_geometry.h"

namespace dsv4rt::cuda {

// What its values are multiplied by, as QueryParams says. Division by a power of two is an exact product.
__device__ inline float head_scale(float sum_of_squares, float eps) {
  const float mean = round_value(__fmul_rn(sum_of_squares, 1.0F / kHeadDim));
  return round_value(__frcp_rn(__fsqrt_rn(round_value(__fadd_rn(mean, eps)))));
}

}  // namespace dsv4rt::cuda
