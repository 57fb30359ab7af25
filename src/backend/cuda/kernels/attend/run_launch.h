// The kernel of attention for runs of tokens (run_plan.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/attend/plan.h"

namespace dsv4rt::cuda {

// Takes all tokens. Precondition: the device has code for sm_90a, and the plan is plan_runs()'s or one of other
// block_tokens that takes them all.
Status launch_runs(const CudaDevice& device, const AttendParams& params, const RunPlan& plan, cudaStream_t stream);

}  // namespace dsv4rt::cuda
