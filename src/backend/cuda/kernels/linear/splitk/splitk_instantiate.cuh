// One variant of the split-K kernel.
#pragma once

#include "backend/cuda/kernels/linear/shared/launch_planned.cuh"
#include "backend/cuda/kernels/linear/splitk/splitk_kernel.cuh"
#include "backend/cuda/kernels/linear/splitk/splitk_launch.h"

namespace dsv4rt::cuda {

template <int kTokens, int kGroups, int kRows>
Status launch_splitk_as(const CudaDevice& device, const LinearParams& p, const LinearPlan& plan, cudaStream_t stream) {
  return launch_planned(device, linear_splitk_kernel<kTokens, kGroups, kRows>,
                        SplitKShape<kTokens, kGroups, kRows>::kThreads, plan, p, stream);
}

}  // namespace dsv4rt::cuda
