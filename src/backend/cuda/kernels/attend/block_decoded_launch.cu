#include "backend/cuda/kernels/attend/block_launch.h"
#include "backend/cuda/kernels/attend/block_pass_launch.cuh"
#include "backend/cuda/kernels/attend/decoded_rows.cuh"

namespace dsv4rt::cuda {

Status launch_decoded_blocks(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                             const DecodedRows& rows, cudaStream_t stream) {
  const Decoded<BlockPass> pass{block_pass(plan), rows};
  return launch_block_pass(device, params, pass, static_cast<unsigned>(plan.blocks), stream);
}

}  // namespace dsv4rt::cuda
