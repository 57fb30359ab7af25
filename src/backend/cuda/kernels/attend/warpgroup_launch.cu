#include <algorithm>
#include <cstddef>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/kernels/attend/warpgroup_kernel.cuh"
#include "backend/cuda/kernels/attend/warpgroup_launch.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kFewestGroupHeads = 16;             // of a warp
constexpr std::size_t kMostSharedBytes = 232448;  // of a block on compute capability 9.0

int compute_capability_major() {
  int device = 0;
  int major = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) return 0;
  return major;
}

int multiprocessors() {
  static const int count = [] {
    int device = 0;
    int number = 1;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&number, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
    }
    return number;
  }();
  return count;
}

// A build without code for 9.0a leaves the kernel empty: it then takes hardly any registers.
bool kernel_is_built() {
  static const bool built = [] {
    constexpr int kRegistersOfNothing = 40;
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, attend_warpgroup_kernel<1>) == cudaSuccess) {
      return attributes.numRegs > kRegistersOfNothing;
    }
    static_cast<void>(cudaGetLastError());
    return false;
  }();
  return built;
}

// Clusters that the device runs at once; its multiprocessors come in groups that clusters do not cross.
template <int kBlocks>
std::int64_t clusters_at_once() {
  static const int clusters = [] {
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {kBlocks, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(kBlocks);
    config.blockDim = dim3(kWarpgroupThreads);
    config.dynamicSmemBytes = sizeof(WarpgroupShared<kBlocks>);
    config.attrs = &cluster;
    config.numAttrs = 1;
    int count = 0;
    const auto kernel = attend_warpgroup_kernel<kBlocks>;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(config.dynamicSmemBytes)) != cudaSuccess ||
        cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
    }
    return count;
  }();
  return clusters;
}

template <int kBlocks>
Status launch(const AttendParams& p, cudaStream_t stream) {
  constexpr std::size_t kSharedBytes = sizeof(WarpgroupShared<kBlocks>);
  static_assert(kSharedBytes <= kMostSharedBytes);
  const auto kernel = attend_warpgroup_kernel<kBlocks>;
  DSV4RT_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  // Fewer heads for a cluster as long as the machine has room for all clusters.
  int group_heads = kTileHeads;
  const auto groups_of = [&](int heads) { return (p.heads + heads - 1) / heads; };
  while (splits_heads<kBlocks>() && group_heads > kFewestGroupHeads &&
         std::int64_t{p.step.counts.tokens} * groups_of(group_heads / 2) <= clusters_at_once<kBlocks>()) {
    group_heads /= 2;
  }
  const int groups = groups_of(group_heads);
  const std::int64_t items = std::int64_t{p.step.counts.tokens} * groups;
  LaunchShape shape{.threads = kWarpgroupThreads, .shared_bytes = kSharedBytes, .cluster_blocks = kBlocks};
  if constexpr (kBlocks == 1) {
    shape.grid = dim3(static_cast<unsigned>(std::min<std::int64_t>(items, multiprocessors())));
  } else {
    shape.grid = dim3(static_cast<unsigned>(p.step.counts.tokens * kBlocks), static_cast<unsigned>(groups));
  }
  CUtensorMap queries;
  DSV4RT_RETURN_IF_ERROR(encode_row_map({.data = p.q,
                                         .value_bytes = 2,
                                         .columns = kHeadDim,
                                         .rows = std::int64_t{p.step.counts.tokens} * p.heads,
                                         .row_bytes = kHeadDim * 2,
                                         .box_columns = kCellValues,
                                         .box_rows = kTileHeads},
                                        queries));
  return launch_pdl(kernel, shape, stream, p, queries, group_heads);
}

}  // namespace

bool warpgroup_applies(const AttendParams& params) {
  constexpr RowFormat kFormat = RowFormat::kFp8DsMla;
  if (params.ring.format != kFormat || (params.ratio > 0 && params.row_format != kFormat)) return false;
  const std::int32_t block_rows = params.rows.shape.rows;
  if (params.ratio > 0 && (block_rows & (block_rows - 1)) != 0) return false;
  if (params.selected != nullptr && params.selected_stride > kPlacedRows) return false;
  return params.window <= kPlacedWindow && compute_capability_major() == 9 && kernel_is_built();
}

std::int64_t warpgroup_rows() {
  return kWarpgroupRows;
}

// As many blocks a token as the machine holds at once, at least as many as the longest token needs.
Status launch_warpgroup(const AttendParams& params, std::int64_t most_rows, cudaStream_t stream) {
  const std::int64_t items = std::int64_t{params.step.counts.tokens} * ((params.heads + kTileHeads - 1) / kTileHeads);
  const std::int64_t needed = std::min<std::int64_t>((most_rows + kShareRows - 1) / kShareRows, kMostClusterBlocks);
  const std::int64_t useful = (most_rows + kStepRows - 1) / kStepRows;
  const auto fits = [&](std::int64_t blocks, std::int64_t clusters) {
    return needed > blocks / 2 || (useful >= blocks && items <= clusters);
  };
  if (fits(8, clusters_at_once<8>())) return launch<8>(params, stream);
  if (fits(4, clusters_at_once<4>())) return launch<4>(params, stream);
  if (fits(2, clusters_at_once<2>())) return launch<2>(params, stream);
  return launch<1>(params, stream);
}

}  // namespace dsv4rt::cuda
