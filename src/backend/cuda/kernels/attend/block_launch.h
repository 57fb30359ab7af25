// The launch of the kernel in which a block takes 64 heads of a token alone.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/attend/plan.h"

namespace dsv4rt::cuda {

// Leaves tokens of the dense kernels alone. Precondition: the device has code for sm_90a.
Status launch_blocks(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                     cudaStream_t stream);
// Where plan.even says how tokens are handed on. `memory`, `zeros`: scratch of plan.even->bytes(), and of zero_bytes()
// that are zero before and after.
Status launch_even_blocks(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                          std::byte* memory, std::byte* zeros, cudaStream_t stream);

}  // namespace dsv4rt::cuda
