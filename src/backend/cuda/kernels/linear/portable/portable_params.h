// What the portable kernel takes.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "backend/ops.h"

namespace dsv4rt::cuda {

// y[T, N] = x[T, K] * W^T. N = 16 * groups without padding rows stored; K padded to 64 in W only.
struct PortableParams {
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

// One encoding each. Blocks of item_tokens tokens: 8, 32 or 64, which changes how often weights are read, never a
// result.
Status launch_portable_bf16(const PortableParams& p, OutputType output, int item_tokens, cudaStream_t stream);
Status launch_portable_fp8(const PortableParams& p, OutputType output, int item_tokens, cudaStream_t stream);
Status launch_portable_nvfp4(const PortableParams& p, OutputType output, int item_tokens, cudaStream_t stream);

}  // namespace dsv4rt::cuda
