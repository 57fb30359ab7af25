#include "backend/cuda/kernels/attend/block_launch.h"
#include "backend/cuda/kernels/attend/block_pass_launch.cuh"

namespace dsv4rt::cuda {

Status launch_blocks(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                     cudaStream_t stream) {
  const BlockPass pass = block_pass(plan);
  const auto blocks = static_cast<unsigned>(plan.blocks);
  if (params.encoded) return launch_block_pass(device, params, EncodedBlockPass{pass}, blocks, stream);
  return launch_block_pass(device, params, pass, blocks, stream);
}

}  // namespace dsv4rt::cuda
