// The Hopper kernel of attention by pairs of blocks: how many a device runs at once, and its launch.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/attend/plan.h"

namespace dsv4rt::cuda {

Result<int> pairs_at_once(const CudaDevice& device);

// Leaves tokens of the dense kernels alone. Precondition: the device has code for sm_90a.
Status launch_pairs(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                    cudaStream_t stream);

}  // namespace dsv4rt::cuda
