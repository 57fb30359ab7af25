// E4M3 codes and scales of a linear's input, as the tile kernel reads them.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/tile_params.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// x is 16-byte aligned and x_stride a multiple of 8. The codes are those of round_activation_fp8.
Status quantize_input(const QuantizeInputParams& params, cudaStream_t stream);

}  // namespace dsv4rt::cuda
