// The Hopper kernels of attention for tokens by themselves: how many of their clusters a device runs at once, and their
// launch.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/attend/plan.h"

namespace dsv4rt::cuda {

// cluster_blocks: 2 (pairs), 4 or 8.
Result<int> warpgroup_clusters_at_once(const CudaDevice& device, int cluster_blocks);

// Leaves tokens of the dense kernels alone. Precondition: the device has code for sm_90a.
Status launch_warpgroup(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                        cudaStream_t stream);

}  // namespace dsv4rt::cuda
