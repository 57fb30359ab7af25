// What the linear kernel takes.
#pragma once

#include <cstdint>

#include "backend/ops.h"

namespace dsv4rt::cuda {

// y[T, N] = x[T, K] * W^T. N = 16 * groups without padding rows stored; K padded to 64 in W only.
struct LinearKernelParams {
  const bf16* x = nullptr;  // [T, K], rows x_stride apart; rounded already where the weight asks for it
  std::int64_t x_stride = 0;
  const std::byte* codes = nullptr;   // see packed_linear.h
  const std::byte* scales = nullptr;  // see packed_linear.h; null for BF16
  float global_scale = 1.0F;
  void* y = nullptr;  // [T, N] bf16 or float, rows y_stride apart
  std::int64_t y_stride = 0;
  std::int32_t tokens = 0;         // T
  std::int32_t inputs = 0;         // K
  std::int32_t padded_inputs = 0;  // K rounded up to 64
  std::int32_t outputs = 0;        // N
};

// E4M3 rounding of x in blocks of 128 inputs, as BF16 values (exact: 4 significant bits and a power of two).
struct ActivationRoundingParams {
  const bf16* x = nullptr;  // [T, K], rows x_stride apart
  std::int64_t x_stride = 0;
  bf16* rounded = nullptr;  // [T, K]
  std::int32_t tokens = 0;
  std::int32_t inputs = 0;
};

}  // namespace dsv4rt::cuda
