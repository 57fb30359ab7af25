#include <algorithm>
#include <cstddef>
#include <string>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/attend/block_launch.h"
#include "backend/cuda/kernels/attend/pair_launch.h"
#include "backend/cuda/kernels/attend/query_map.cuh"
#include "backend/cuda/kernels/attend/warpgroup_kernel.cuh"
#include "backend/cuda/kernels/attend/warpgroup_launch.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kFewestGroupHeads = 16;  // heads that one warp takes

// Steps of rows from which clusters of so many blocks are faster than smaller ones. `few`: they take half of their
// places at most.
constexpr std::int64_t fewest_steps(int blocks, bool few) {
  if (blocks == 8) return 8;
  if (blocks == 4) return few ? 5 : 16;
  return 1;
}

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
  DSV4RT_RETURN_IF_ERROR(encode_query_map(p, queries));
  return launch_pdl(kernel,
                    {.grid = dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.grid_groups)),
                     .threads = kWarpgroupThreads,
                     .shared_bytes = kSharedBytes,
                     .cluster_blocks = kBlocks},
                    stream, p, queries, WarpgroupPass{.group_heads = plan.group_heads, .dense = plan.dense});
}

}  // namespace

Result<int> warpgroup_clusters_at_once(const CudaDevice& device, int cluster_blocks) {
  switch (cluster_blocks) {
    case 2:
      return pairs_at_once(device);
    case 4:
      return clusters_at_once<4>(device);
    case 8:
      return clusters_at_once<8>(device);
    default:
      return Status{StatusCode::kInternal, "attend: clusters of " + std::to_string(cluster_blocks) + " blocks"};
  }
}

// A token gets as many blocks as the machine holds at once and as are of use.
Result<WarpgroupPlan> plan_warpgroup(const CudaDevice& device, const AttendParams& p, std::int64_t most_rows) {
  const std::int64_t tokens = p.step.counts.tokens;
  const auto groups_of = [&](int heads) { return (p.heads + heads - 1) / heads; };
  WarpgroupPlan plan{.tokens = tokens, .group_heads = kTileHeads, .groups = groups_of(kTileHeads)};
  const std::int64_t steps = (most_rows + kStepRows - 1) / kStepRows;
  const std::int64_t items = tokens * plan.groups;
  for (const int blocks : {8, 4, 2}) {
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t at_once, warpgroup_clusters_at_once(device, blocks));
    if (items > at_once || steps < fewest_steps(blocks, 2 * items <= at_once)) continue;
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
  plan.blocks = std::min<std::int64_t>(items, device.multiprocessors());
  return plan;
}

Status launch_warpgroup(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                        cudaStream_t stream) {
  if (plan.cluster_blocks == 8) return launch<8>(device, params, plan, stream);
  if (plan.cluster_blocks == 4) return launch<4>(device, params, plan, stream);
  if (plan.cluster_blocks == 2) return launch_pairs(device, params, plan, stream);
  return launch_blocks(device, params, plan, stream);
}

}  // namespace dsv4rt::cuda
