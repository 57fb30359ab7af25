#include <cstdint>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/attend/block_kernel.cuh"
#include "backend/cuda/kernels/attend/block_launch.h"
#include "backend/cuda/kernels/attend/query_map.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Status launch_blocks(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                     cudaStream_t stream) {
  const auto kernel = attend_block_kernel<BlockPass>;
  DSV4RT_RETURN_IF_ERROR(device.prepare(kernel, sizeof(BlockShared)));
  CUtensorMap queries;
  DSV4RT_RETURN_IF_ERROR(encode_query_map(params, queries));
  return launch_pdl(
      kernel,
      {.grid = dim3(static_cast<unsigned>(plan.blocks)), .threads = kBlockThreads, .shared_bytes = sizeof(BlockShared)},
      stream, params, queries,
      BlockPass{.first_token = static_cast<std::int32_t>(plan.first_token),
                .tokens = static_cast<std::int32_t>(plan.tokens),
                .groups = plan.groups,
                .dense = plan.dense});
}

}  // namespace dsv4rt::cuda
