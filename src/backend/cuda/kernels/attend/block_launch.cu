#include "backend/cuda/kernels/attend/block_launch.h"
#include "backend/cuda/kernels/attend/block_pass_launch.cuh"

namespace dsv4rt::cuda {

Status launch_blocks(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                     cudaStream_t stream) {
  return launch_block_pass(device, params, block_pass(plan), static_cast<unsigned>(plan.blocks), stream);
}

}  // namespace dsv4rt::cuda
