// The launch of the kernel of tokens whose rows lie decoded (prompt_plan.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/attend/plan.h"

namespace dsv4rt::cuda {

struct DecodedRows;  // decoded_rows.cuh

// Leaves tokens of the dense kernels alone. Precondition: the device has code for sm_90a.
Status launch_prompt(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                     const DecodedRows& rows, cudaStream_t stream);

}  // namespace dsv4rt::cuda
