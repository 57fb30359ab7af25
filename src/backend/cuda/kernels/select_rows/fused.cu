// Launch of the one kernel for tokens with few rows, on Hopper.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/select_rows/fused_kernel.cuh"
#include "backend/cuda/kernels/select_rows/stages.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int32_t kSharedBudget = 227 * 1024 - std::int32_t{sizeof(FusedControl)};

struct FusedLaunch {
  void (*kernel)(SelectRowsParams, ScoreBatch, ScoreShape) = nullptr;
  ScoreShape shape;
  std::size_t shared_bytes = 0;
};

template <IndexKeyFormat kFormat>
FusedLaunch launch_of() {
  using Layout = typename KeyOperand<kFormat>::Layout;
  FusedLaunch launch;
  launch.kernel = fused_select_kernel<kFormat>;
  launch.shape.stage_bytes = kTileKeys * (Layout::kDataBytes + Layout::kScaleBytes);
  const std::int32_t query_bytes = kQueryTileBytes + kTileHeads * std::int32_t{sizeof(float)};
  launch.shape.stages =
      std::min((kSharedBudget - query_bytes) / launch.shape.stage_bytes, kMostStages) / kScoreGroups * kScoreGroups;
  launch.shared_bytes =
      static_cast<std::size_t>(query_bytes + launch.shape.stages * launch.shape.stage_bytes) + sizeof(FusedControl);
  return launch;
}

Result<FusedLaunch> launch_for(IndexKeyFormat format) {
  switch (format) {
    case IndexKeyFormat::kMxfp4:
      return launch_of<IndexKeyFormat::kMxfp4>();
    case IndexKeyFormat::kNvfp4:
      return launch_of<IndexKeyFormat::kNvfp4>();
    case IndexKeyFormat::kFp8:
      return launch_of<IndexKeyFormat::kFp8>();
    case IndexKeyFormat::kBf16:
      return launch_of<IndexKeyFormat::kBf16>();
  }
  return refused(StatusCode::kUnsupported, "select_rows", "key_format", static_cast<std::int64_t>(format),
                 "an IndexKeyFormat");
}

}  // namespace

Result<std::int32_t> fused_blocks(const SelectRowsParams& p, const ScoreBatch& batch, std::int32_t processors) {
  if (batch.group_tokens > 1 || p.heads > kTileHeads) return 0;
  for (std::int32_t blocks = kMostTopKBlocks; blocks >= 1; blocks /= 2) {
    if (batch.most_rows > blocks * kMostFusedTiles * kTileKeys) return 0;
    if (std::int64_t{batch.tokens} * blocks > processors) continue;
    if (blocks == 1) return 1;
    // Clusters do not fill every group of processors.
    DSV4RT_ASSIGN_OR_RETURN(const FusedLaunch launch, launch_for(p.key_format));
    DSV4RT_CUDA_TRY(cudaFuncSetAttribute(launch.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(launch.shared_bytes)));
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(batch.tokens * blocks));
    config.blockDim = dim3(kWgmmaScoreThreads);
    config.dynamicSmemBytes = launch.shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int clusters = 0;
    DSV4RT_CUDA_TRY(cudaOccupancyMaxActiveClusters(&clusters, launch.kernel, &config));
    if (clusters >= batch.tokens) return blocks;
  }
  return 0;
}

Status launch_fused(const SelectRowsParams& p, const ScoreBatch& batch, std::int32_t blocks, cudaStream_t stream) {
  DSV4RT_ASSIGN_OR_RETURN(const FusedLaunch launch, launch_for(p.key_format));
  DSV4RT_CUDA_TRY(cudaFuncSetAttribute(launch.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(launch.shared_bytes)));
  return launch_pdl(launch.kernel,
                    {.grid = dim3(static_cast<unsigned>(batch.tokens) * static_cast<unsigned>(blocks)),
                     .threads = kWgmmaScoreThreads,
                     .shared_bytes = launch.shared_bytes,
                     .cluster_blocks = static_cast<unsigned>(blocks)},
                    stream, p, batch, launch.shape);
}

}  // namespace dsv4rt::cuda
