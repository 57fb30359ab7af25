#include <algorithm>
#include <cstddef>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/attend/warpgroup_kernel.cuh"
#include "backend/cuda/kernels/attend/warpgroup_launch.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::size_t kMostSharedBytes = 232448;  // of a block on compute capability 9.0
constexpr std::int64_t kMachineBlocks = 132;      // multiprocessors of an H100 or H200; a block fills one

int compute_capability_major() {
  int device = 0;
  int major = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) return 0;
  return major;
}

template <int kBlocks>
Status launch(const AttendParams& p, cudaStream_t stream) {
  constexpr std::size_t kSharedBytes = sizeof(WarpgroupShared<kBlocks>);
  static_assert(kSharedBytes <= kMostSharedBytes);
  const auto kernel = attend_warpgroup_kernel<kBlocks>;
  DSV4RT_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kBlocks;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.step.counts.tokens * kBlocks),
                        static_cast<unsigned>((p.heads + kTileHeads - 1) / kTileHeads));
  config.blockDim = dim3(kWarpgroupThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return DSV4RT_CUDA_STATUS(cudaLaunchKernelEx(&config, kernel, p));
}

}  // namespace

bool warpgroup_applies(const AttendParams& params) {
  constexpr RowFormat kFormat = RowFormat::kFp8DsMla;
  if (params.ring.format != kFormat || (params.ratio > 0 && params.row_format != kFormat)) return false;
  const std::int32_t block_rows = params.rows.shape.rows;
  if (params.ratio > 0 && (block_rows & (block_rows - 1)) != 0) return false;
  return params.window <= kPlacedWindow && compute_capability_major() == 9;
}

std::int64_t warpgroup_rows() {
  return kWarpgroupRows;
}

// As many blocks a token as the machine holds at once, at least as many as the longest token needs.
Status launch_warpgroup(const AttendParams& params, std::int64_t most_rows, cudaStream_t stream) {
  const std::int64_t items = std::int64_t{params.step.counts.tokens} * ((params.heads + kTileHeads - 1) / kTileHeads);
  const std::int64_t needed = std::min<std::int64_t>((most_rows + kShareRows - 1) / kShareRows, kMostClusterBlocks);
  const std::int64_t useful = std::min((most_rows + kStepRows - 1) / kStepRows, kMachineBlocks / items);
  const std::int64_t blocks = std::max(needed, useful);
  if (blocks >= 8 || needed > 4) return launch<8>(params, stream);
  if (blocks >= 4 || needed > 2) return launch<4>(params, stream);
  if (blocks >= 2) return launch<2>(params, stream);
  return launch<1>(params, stream);
}

}  // namespace dsv4rt::cuda
