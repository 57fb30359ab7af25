// A launch as a plan says.
#pragma once

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/linear_dispatch.h"
#include "base/try.h"

namespace dsv4rt::cuda {

template <class Params>
Status launch_planned(const CudaDevice& device, void (*kernel)(Params), int threads, const LinearPlan& plan,
                      const Params& params, cudaStream_t stream) {
  DSV4RT_RETURN_IF_ERROR(device.prepare(kernel, static_cast<std::size_t>(device.block_shared_bytes())));
  return launch_pdl(kernel,
                    {.grid = dim3(static_cast<unsigned>(plan.clusters * plan.cluster_blocks)),
                     .threads = static_cast<unsigned>(threads),
                     .shared_bytes = static_cast<std::size_t>(plan.shared_bytes),
                     .cluster_blocks = static_cast<unsigned>(plan.cluster_blocks)},
                    stream, params);
}

}  // namespace dsv4rt::cuda
