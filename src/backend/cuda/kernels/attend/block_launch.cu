#include <cstdint>

#include "backend/cuda/kernels/attend/block_launch.h"
#include "backend/cuda/kernels/attend/block_pass_launch.cuh"

namespace dsv4rt::cuda {

Status launch_blocks(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                     cudaStream_t stream) {
  const BlockPass pass{
      .item_count = static_cast<std::int32_t>(plan.tokens * plan.groups), .groups = plan.groups, .dense = plan.dense};
  return launch_block_pass(device, params, pass, static_cast<unsigned>(plan.blocks), stream);
}

}  // namespace dsv4rt::cuda
