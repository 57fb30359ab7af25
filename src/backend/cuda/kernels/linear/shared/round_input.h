// A linear's input as the tile kernel reads it: E4M3 values, held as BF16.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/shared/linear_params.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// x is 16-byte aligned and x_stride a multiple of 8. The codes are those of round_activation_fp8.
Status round_input(const RoundInputParams& params, cudaStream_t stream);

}  // namespace dsv4rt::cuda
