// Launches of the split-K kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/linear_dispatch.h"

namespace dsv4rt::cuda {

class CudaDevice;

// p.items clusters of p.segments / groups blocks.
Status launch_splitk(const CudaDevice& device, const LinearParams& p, const LinearPlan& plan, cudaStream_t stream);

// One variant; a small translation unit for those of a token count keeps rebuilds short: splitk_<tokens>.cu.
template <int kTokens, int kGroups, int kRows>
Status launch_splitk_as(const CudaDevice& device, const LinearParams& p, const LinearPlan& plan, cudaStream_t stream);

}  // namespace dsv4rt::cuda
