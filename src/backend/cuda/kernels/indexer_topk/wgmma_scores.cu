// Launch of the index scores on Hopper, alone or with the selection.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/indexer_topk/stages.h"
#include "backend/cuda/kernels/indexer_topk/wgmma_kernel.cuh"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int32_t kLeastStages = 2 * kScoreGroups;

// One block a processor; or as many for every token, so that tokens of equal length divide without a change of
// queries within a block, where that costs less than the processors left idle would have done.
std::int32_t grid_blocks(const ScoreBatch& batch, std::int32_t processors) {
  const std::int32_t even = processors / batch.tokens * batch.tokens;
  if (batch.group_tokens > 1 || even == 0) return processors;
  const std::int64_t tiles = std::int64_t{batch.tokens} * ceil_div(batch.most_rows, kTileKeys);
  return (processors - even) * tiles <= std::int64_t{kChangeTiles} * processors * processors ? even : processors;
}

template <IndexKeyFormat kFormat>
auto kernel_for(ScoreUse use) {
  switch (use) {
    case ScoreUse::kSelect:
      return wgmma_score_kernel<kFormat, ScoreUse::kSelect>;
    case ScoreUse::kTokens:
      return wgmma_score_kernel<kFormat, ScoreUse::kTokens>;
    default:
      return wgmma_score_kernel<kFormat, ScoreUse::kRuns>;
  }
}

template <IndexKeyFormat kFormat>
Status launch_of(const CudaDevice& device, const IndexerTopkParams& p, const ScoreBatch& planned, bool select,
                 cudaStream_t stream) {
  using Layout = typename KeyOperand<kFormat>::Layout;
  ScoreBatch batch = planned;
  ScoreShape shape;
  const std::int32_t control_bytes =
      std::int32_t{sizeof(ScoreControl)} + (select ? std::int32_t{sizeof(SelectorShared)} : 0);
  const std::int32_t budget = device.block_shared_bytes() - control_bytes;
  shape.head_tiles = ceil_div(p.heads, kTileHeads);
  shape.stage_bytes = kTileKeys * (Layout::kDataBytes + Layout::kScaleBytes);
  shape.weight_runs = kFormat == IndexKeyFormat::kMxfp4 ? 2 : 1;  // score_integer_runs() holds the next run's too
  const std::int32_t token_bytes = run_query_bytes(shape, 1) + run_weights(shape, 1) * std::int32_t{sizeof(float)};
  const std::int32_t most_tokens = (budget - kLeastStages * shape.stage_bytes) / token_bytes;
  batch.group_tokens = std::clamp(batch.group_tokens, 1, std::min(most_tokens, kMostRunTokens));
  const std::int32_t ring_bytes = budget - batch.group_tokens * token_bytes;
  shape.stages = std::min(ring_bytes / shape.stage_bytes, kMostStages) / kScoreGroups * kScoreGroups;
  const std::int32_t shared_bytes = batch.group_tokens * token_bytes + shape.stages * shape.stage_bytes + control_bytes;
  const bool tokens = batch.group_tokens == 1 && shape.head_tiles == 1;
  const auto kernel = kernel_for<kFormat>(select ? ScoreUse::kSelect : tokens ? ScoreUse::kTokens : ScoreUse::kRuns);
  DSV4RT_RETURN_IF_ERROR(device.prepare(kernel, static_cast<std::size_t>(device.block_shared_bytes())));
  return launch_pdl(kernel,
                    {.grid = dim3(static_cast<unsigned>(grid_blocks(batch, device.multiprocessors()))),
                     .threads = kWgmmaScoreThreads,
                     .shared_bytes = static_cast<std::size_t>(shared_bytes)},
                    stream, p, batch, shape);
}

Status launch(const CudaDevice& device, const IndexerTopkParams& p, const ScoreBatch& batch, bool select,
              cudaStream_t stream) {
  switch (p.key_format) {
    case IndexKeyFormat::kMxfp4:
      return launch_of<IndexKeyFormat::kMxfp4>(device, p, batch, select, stream);
    case IndexKeyFormat::kNvfp4:
      return launch_of<IndexKeyFormat::kNvfp4>(device, p, batch, select, stream);
    case IndexKeyFormat::kFp8:
      return launch_of<IndexKeyFormat::kFp8>(device, p, batch, select, stream);
    case IndexKeyFormat::kBf16:
      return launch_of<IndexKeyFormat::kBf16>(device, p, batch, select, stream);
  }
  return refused(StatusCode::kUnsupported, "indexer_topk", "key_format", static_cast<std::int64_t>(p.key_format),
                 "an IndexKeyFormat");
}

}  // namespace

Status launch_wgmma_scores(const CudaDevice& device, const IndexerTopkParams& p, const ScoreBatch& batch,
                           cudaStream_t stream) {
  return launch(device, p, batch, false, stream);
}

Status launch_wgmma_selection(const CudaDevice& device, const IndexerTopkParams& p, const ScoreBatch& batch,
                              std::int32_t blocks, cudaStream_t stream) {
  ScoreBatch counted = batch;
  counted.selected_apart = blocks > 1;
  if (blocks == 1) return launch(device, p, counted, true, stream);
  // Counts that nobody reads would be taken for those of a later step: what can fail comes before them, and where the
  // second launch is refused they become zeros again.
  DSV4RT_RETURN_IF_ERROR(prepare_select_counted(device));
  DSV4RT_RETURN_IF_ERROR(launch(device, p, counted, true, stream));
  const Status selected = launch_select_counted(p, counted, blocks, stream);
  if (selected.ok()) return {};
  const auto bytes = static_cast<std::size_t>(batch.tokens) * sizeof(SelectState);
  static_cast<void>(cudaMemsetAsync(batch.state, 0, bytes, stream));
  return selected;
}

}  // namespace dsv4rt::cuda
