// Launches of the gemv kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/linear_dispatch.h"

namespace dsv4rt::cuda {

class CudaDevice;

// p.items clusters of p.segments blocks.
Status launch_gemv(const CudaDevice& device, const LinearParams& p, const LinearPlan& plan, cudaStream_t stream);

}  // namespace dsv4rt::cuda
