// A linear's input rounded to E4M3 times a power of two in blocks of 128 inputs, as BF16 values (exact: 4 significant
// bits and a power of two). The values are those of round_activation_fp8.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "base/bfloat16.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

struct RoundInputParams {
  const bf16* x = nullptr;  // [T, K], rows x_stride apart
  std::int64_t x_stride = 0;
  bf16* rounded = nullptr;  // [T, K]
  std::int32_t tokens = 0;  // T
  std::int32_t blocks = 0;  // blocks of 128 inputs in a row, the last maybe shorter; set by round_input()
  std::int32_t inputs = 0;  // K
};

// Any alignment and K; whole blocks of 16-byte aligned rows take the least time. most_blocks: of the grid, if they can
// do it; 0: as many as there are.
Status round_input(RoundInputParams params, int most_blocks, cudaStream_t stream);

}  // namespace dsv4rt::cuda
