// Launch of the one kernel for tokens with few rows, on Hopper.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/indexer_topk/fused_kernel.cuh"
#include "backend/cuda/kernels/indexer_topk/stages.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int32_t kMostFusedBlocks = 8;  // for a token

// With more tokens than multiprocessors blocks follow one another: twice, where the second time leaves no more than
// three quarters of the multiprocessors idle. Otherwise kernels whose blocks share the tokens' rows are faster.
bool fills_two_rounds(std::int64_t tokens, std::int64_t processors) {
  return 4 * tokens >= 5 * processors && tokens <= 2 * processors;
}

struct FusedLaunch {
  void (*kernel)(IndexerTopkParams, ScoreBatch, ScoreShape) = nullptr;
  ScoreShape shape;
  std::size_t shared_bytes = 0;
};

template <IndexKeyFormat kFormat>
FusedLaunch launch_of(const CudaDevice& device) {
  using Layout = typename KeyOperand<kFormat>::Layout;
  FusedLaunch launch;
  launch.kernel = fused_select_kernel<kFormat>;
  launch.shape.stage_bytes = kTileKeys * (Layout::kDataBytes + Layout::kScaleBytes);
  const std::int32_t budget = device.block_shared_bytes() - std::int32_t{sizeof(FusedControl)};
  const std::int32_t query_bytes =
      run_query_bytes(launch.shape, 1) + run_weights(launch.shape, 1) * std::int32_t{sizeof(float)};
  launch.shape.stages =
      std::min((budget - query_bytes) / launch.shape.stage_bytes, kMostStages) / kScoreGroups * kScoreGroups;
  launch.shared_bytes =
      static_cast<std::size_t>(query_bytes + launch.shape.stages * launch.shape.stage_bytes) + sizeof(FusedControl);
  return launch;
}

Result<FusedLaunch> launch_for(const CudaDevice& device, IndexKeyFormat format) {
  switch (format) {
    case IndexKeyFormat::kMxfp4:
      return launch_of<IndexKeyFormat::kMxfp4>(device);
    case IndexKeyFormat::kNvfp4:
      return launch_of<IndexKeyFormat::kNvfp4>(device);
    case IndexKeyFormat::kFp8:
      return launch_of<IndexKeyFormat::kFp8>(device);
    case IndexKeyFormat::kBf16:
      return launch_of<IndexKeyFormat::kBf16>(device);
  }
  return refused(StatusCode::kUnsupported, "indexer_topk", "key_format", static_cast<std::int64_t>(format),
                 "an IndexKeyFormat");
}

}  // namespace

Result<std::int32_t> fused_blocks(const CudaDevice& device, const IndexerTopkParams& p, const ScoreBatch& batch) {
  if (batch.group_tokens > 1 || p.heads > kTileHeads || batch.most_rows > kMostFewRows) return 0;
  if (fills_two_rounds(batch.tokens, device.multiprocessors())) return 1;
  for (std::int32_t blocks = kMostFusedBlocks; blocks >= 1; blocks /= 2) {
    if (std::int64_t{batch.tokens} * blocks > device.multiprocessors()) continue;
    if (blocks == 1) return 1;
    // Clusters do not fill every group of processors.
    DSV4RT_ASSIGN_OR_RETURN(const FusedLaunch launch, launch_for(device, p.key_format));
    DSV4RT_ASSIGN_OR_RETURN(const int clusters,
                            device.clusters_at_once(launch.kernel, blocks, kWgmmaScoreThreads, launch.shared_bytes));
    if (clusters >= batch.tokens) return blocks;
  }
  return 0;
}

Status launch_fused(const CudaDevice& device, const IndexerTopkParams& p, const ScoreBatch& batch, std::int32_t blocks,
                    cudaStream_t stream) {
  DSV4RT_ASSIGN_OR_RETURN(const FusedLaunch launch, launch_for(device, p.key_format));
  DSV4RT_RETURN_IF_ERROR(device.prepare(launch.kernel, launch.shared_bytes));
  return launch_pdl(launch.kernel,
                    {.grid = dim3(static_cast<unsigned>(batch.tokens) * static_cast<unsigned>(blocks)),
                     .threads = kWgmmaScoreThreads,
                     .shared_bytes = launch.shared_bytes,
                     .cluster_blocks = static_cast<unsigned>(blocks)},
                    stream, p, batch, launch.shape);
}

}  // namespace dsv4rt::cuda
