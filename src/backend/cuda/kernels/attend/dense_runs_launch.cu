#include "backend/cuda/kernels/attend/block_pass_launch.cuh"
#include "backend/cuda/kernels/attend/dense_launch.h"
#include "backend/cuda/kernels/attend/dense_plan.cuh"

namespace dsv4rt::cuda {

Status launch_packed_runs(const CudaDevice& device, const AttendParams& p, const DenseRunsPass& pass,
                          cudaStream_t stream) {
  return launch_split_pass(device, p, pass, pass, stream);
}

}  // namespace dsv4rt::cuda
