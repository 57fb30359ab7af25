// A linear's input as products of E4M3 read it.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "backend/ops.h"
#include "base/bfloat16.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

struct EncodeInputParams {
  const bf16* x = nullptr;  // [T, K], rows x_stride apart; 16-byte aligned, as its rows are
  std::int64_t x_stride = 0;
  EncodedRows to;           // width K; scale_stride T and more
  std::int32_t tokens = 0;  // T
};

// most_blocks: as round_input() has it.
Status encode_input(const EncodeInputParams& params, int most_blocks, cudaStream_t stream);

}  // namespace dsv4rt::cuda
