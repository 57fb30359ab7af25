#include <cstdint>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/attend/pair_kernel.cuh"
#include "backend/cuda/kernels/attend/pair_launch.h"
#include "backend/cuda/kernels/attend/query_map.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Result<int> pairs_at_once(const CudaDevice& device) {
  return device.clusters_at_once(attend_pair_kernel, 2, kPairThreads, sizeof(PairShared));
}

Status launch_pairs(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                    cudaStream_t stream) {
  DSV4RT_RETURN_IF_ERROR(device.prepare(attend_pair_kernel, sizeof(PairShared)));
  CUtensorMap queries;
  DSV4RT_RETURN_IF_ERROR(encode_query_map(params, queries));
  return launch_pdl(attend_pair_kernel,
                    {.grid = dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.grid_groups)),
                     .threads = kPairThreads,
                     .shared_bytes = sizeof(PairShared),
                     .cluster_blocks = 2},
                    stream, params, queries, plan.dense);
}

}  // namespace dsv4rt::cuda
