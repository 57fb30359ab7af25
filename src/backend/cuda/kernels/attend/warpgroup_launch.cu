#include <algorithm>
#include <cstddef>
#include <string>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/kernels/attend/warpgroup_kernel.cuh"
#include "backend/cuda/kernels/attend/warpgroup_launch.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kFewestGroupHeads = 16;  // heads that one warp takes

template <int kBlocks>
Result<int> clusters_at_once(const CudaDevice& device) {
  return device.clusters_at_once(attend_warpgroup_kernel<kBlocks>, kBlocks, kWarpgroupThreads,
                                 sizeof(WarpgroupShared<kBlocks>));
}

template <int kBlocks>
Status launch(const CudaDevice& device, const AttendParams& p, const WarpgroupPlan& plan, cudaStream_t stream) {
  constexpr std::size_t kSharedBytes = sizeof(WarpgroupShared<kBlocks>);
  const auto kernel = attend_warpgroup_kernel<kBlocks>;
  DSV4RT_RETURN_IF_ERROR(device.prepare(kernel, kSharedBytes));
  CUtensorMap queries;
  DSV4RT_RETURN_IF_ERROR(encode_row_map({.data = p.q,
                                         .value_bytes = 2,
                                         .columns = kHeadDim,
                                         .rows = std::int64_t{p.step.counts.tokens} * p.heads,
                                         .row_bytes = kHeadDim * 2,
                                         .box_columns = kAtomValues,
                                         .box_rows = kTileHeads},
                                        queries));
  return launch_pdl(kernel,
                    {.grid = dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.grid_groups)),
                     .threads = kWarpgroupThreads,
                     .shared_bytes = kSharedBytes,
                     .cluster_blocks = kBlocks},
                    stream, p, queries, plan.group_heads, plan.dense);
}

}  // namespace

Result<int> warpgroup_clusters_at_once(const CudaDevice& device, int cluster_blocks) {
  switch (cluster_blocks) {
    case 1:
      return clusters_at_once<1>(device);
    case 2:
      return clusters_at_once<2>(device);
    case 4:
      return clusters_at_once<4>(device);
    case 8:
      return clusters_at_once<8>(device);
    default:
      return Status{StatusCode::kInternal, "attend: clusters of " + std::to_string(cluster_blocks) + " blocks"};
  }
}

// A token gets as many blocks as the machine holds at once, and at least as many as the longest token needs.
Result<WarpgroupPlan> plan_warpgroup(const CudaDevice& device, const AttendParams& p, std::int64_t most_rows) {
  const std::int64_t tokens = p.step.counts.tokens;
  const auto groups_of = [&](int heads) { return (p.heads + heads - 1) / heads; };
  WarpgroupPlan plan{.group_heads = kTileHeads, .groups = groups_of(kTileHeads)};
  const std::int64_t needed = std::min<std::int64_t>((most_rows + kSplitRows - 1) / kSplitRows, kMostClusterBlocks);
  const std::int64_t useful = (most_rows + kStepRows - 1) / kStepRows;
  for (const int blocks : {8, 4, 2}) {
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t at_once, warpgroup_clusters_at_once(device, blocks));
    if (needed <= blocks / 2 && (useful < blocks || tokens * plan.groups > at_once)) continue;
    plan.cluster_blocks = blocks;
    // Fewer heads for a cluster as long as the machine has room for all clusters.
    while (blocks == kMostClusterBlocks && plan.group_heads > kFewestGroupHeads &&
           tokens * groups_of(plan.group_heads / 2) <= at_once) {
      plan.group_heads /= 2;
    }
    plan.groups = plan.grid_groups = groups_of(plan.group_heads);
    plan.blocks = tokens * blocks;
    return plan;
  }
  // One block takes one token's heads after the other's.
  plan.blocks = std::min<std::int64_t>(tokens * plan.groups, device.multiprocessors());
  return plan;
}

Status launch_warpgroup(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                        cudaStream_t stream) {
  if (plan.cluster_blocks == 8) return launch<8>(device, params, plan, stream);
  if (plan.cluster_blocks == 4) return launch<4>(device, params, plan, stream);
  if (plan.cluster_blocks == 2) return launch<2>(device, params, plan, stream);
  return launch<1>(device, params, plan, stream);
}

}  // namespace dsv4rt::cuda
