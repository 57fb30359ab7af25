#include "backend/cuda/kernels/linear/gemv/gemv_kernel.cuh"
#include "backend/cuda/kernels/linear/gemv/gemv_launch.h"
#include "backend/cuda/kernels/linear/shared/launch_planned.cuh"

namespace dsv4rt::cuda {

Status launch_gemv(const CudaDevice& device, const LinearParams& p, const LinearPlan& plan, cudaStream_t stream) {
  return launch_planned(device, linear_gemv_kernel, kGemvThreads, plan, p, stream);
}

}  // namespace dsv4rt::cuda
