// Launches of the prefill kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/linear_dispatch.h"

namespace dsv4rt::cuda {

class CudaDevice;

// Any number of clusters.
Status launch_prefill(const CudaDevice& device, const PrefillParams& p, const LinearPlan& plan, cudaStream_t stream);

// How many clusters of each variant the device runs at once. Kept by the device.
Status ask_prefill_clusters(const CudaDevice& device, std::array<int, kPrefillVariants.size()>& clusters);

}  // namespace dsv4rt::cuda
