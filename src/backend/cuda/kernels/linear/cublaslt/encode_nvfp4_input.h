// A linear's input as cuBLASLt reads it for an NVFP4 weight: E2M1 codes, and apart from them an E4M3 scale per 16
// inputs.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "base/bfloat16.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

struct EncodeNvfp4InputParams {
  const bf16* x = nullptr;  // [T, K], rows x_stride apart; 16-byte aligned, as its rows are
  std::int64_t x_stride = 0;
  std::uint8_t* codes = nullptr;   // [T, K / 2], low nibble first; 8-byte aligned
  std::uint8_t* scales = nullptr;  // nvfp4_scale_bytes(T, K / 16), in the order of nvfp4_scale_tiles.h
  float global_scale = 1.0F;
  std::int32_t tokens = 0;  // T
  std::int32_t inputs = 0;  // K, a multiple of 16
};

// The bytes of encode_nvfp4_group; zeros in the padding of the scales. What E2M1 cannot say is lost: a NaN becomes 0,
// an infinity the largest value of its group's scale.
Status encode_nvfp4_input(const EncodeNvfp4InputParams& params, cudaStream_t stream);

}  // namespace dsv4rt::cuda
