// A linear's input rounded to E4M3 with a power-of-two scale per 128 inputs, as the kernels read it. The values are
// those of round_activation_fp8.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/tile_params.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// x is 16-byte aligned and x_stride a multiple of 8.
struct RoundInputParams {
  const bf16* x = nullptr;  // [T, K], rows x_stride apart
  std::int64_t x_stride = 0;
  bf16* rounded = nullptr;  // [T, K]
  std::int32_t tokens = 0;
  std::int32_t blocks = 0;  // K / 128
};

// Values as BF16, exactly: for the tile kernel.
Status round_input(const RoundInputParams& params, cudaStream_t stream);

struct EncodeInputParams {
  const bf16* x = nullptr;  // as above
  std::int64_t x_stride = 0;
  std::uint8_t* codes = nullptr;  // E4M3 [T, K]
  float* scales = nullptr;        // [K / 128, T], rows scale_stride values apart
  std::int32_t scale_stride = 0;
  std::int32_t tokens = 0;
  std::int32_t blocks = 0;  // K / 128
};

// Codes and scales apart: for cuBLASLt.
Status encode_input(const EncodeInputParams& params, cudaStream_t stream);

}  // namespace dsv4rt::cuda
