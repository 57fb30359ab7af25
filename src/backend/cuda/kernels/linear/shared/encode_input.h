// A linear's input as products of E4M3 read it: codes, and apart from them a power-of-two scale per 128 inputs.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "base/bfloat16.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

struct EncodeInputParams {
  const bf16* x = nullptr;  // [T, K], rows x_stride apart; 16-byte aligned, as its rows are
  std::int64_t x_stride = 0;
  std::uint8_t* codes = nullptr;  // [T, K]
  float* scales = nullptr;        // [K / 128, T], rows scale_stride values apart
  std::int32_t scale_stride = 0;
  std::int32_t tokens = 0;  // T
  std::int32_t blocks = 0;  // K / 128
};

// Codes times scales are the values of round_activation_fp8. most_blocks: as round_input() has it.
Status encode_input(const EncodeInputParams& params, int most_blocks, cudaStream_t stream);

}  // namespace dsv4rt::cuda
