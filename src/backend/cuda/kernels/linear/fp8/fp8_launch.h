// Launches of the E4M3 kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/linear_dispatch.h"

namespace dsv4rt::cuda {

// Any number of blocks.
Status launch_fp8(const CudaDevice& device, const PrefillParams& p, const LinearPlan& plan, cudaStream_t stream);

}  // namespace dsv4rt::cuda
