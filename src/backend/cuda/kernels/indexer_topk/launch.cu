// Selection of compressed rows. The scores of as many tokens as the scratch region holds are computed and
// selected from, then those of the next: one token's bound of visible rows must fit. Only the host's bound
// is known here; the kernels read what a token sees.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/indexer_topk/stages.h"
#include "backend/cuda/kernels/indexer_topk/tile_keys.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int64_t kMostBatchTokens = 65535;  // limit of a grid's second dimension

constexpr const char* kName = "indexer_topk";

Status check(const IndexerTopkParams& p) {
  DSV4RT_RETURN_IF_ERROR(
      require_supported(p.heads >= 1 && p.heads <= kMostIndexHeads, kName, "heads", p.heads, "1 to 128"));
  DSV4RT_RETURN_IF_ERROR(require(p.ratio >= 1, kName, "ratio", p.ratio, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(require(p.top_k >= 1, kName, "top_k", p.top_k, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(require_shape(p.keys.shape, p.key_format, kName, "keys.shape"));
  const std::int64_t rows = p.keys.table_stride * p.keys.shape.rows;
  DSV4RT_RETURN_IF_ERROR(require_supported(rows >= 1 && rows <= (std::int64_t{1} << 30), kName,
                                           "keys.table_stride * keys.shape.rows", rows, "1 to 2^30"));
  // Keys and queries are read 16 bytes at a time.
  DSV4RT_RETURN_IF_ERROR(require_aligned(p.q, 16, kName, "q"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(p.keys.blocks, 16, kName, "keys.blocks"));
  return require(p.keys.shape.block_bytes % 16 == 0, kName, "keys.shape.block_bytes", p.keys.shape.block_bytes,
                 "multiples of 16");
}

}  // namespace

Result<ScoreBatch> plan_scores(const IndexerTopkParams& params, const Scratch& scratch) {
  DSV4RT_RETURN_IF_ERROR(check(params));
  const std::int64_t tokens = params.step.counts.tokens;
  ScoreBatch batch;
  batch.tokens = static_cast<std::int32_t>(tokens);
  // The table's rows, or those that the step's largest position lets a token see.
  const std::int64_t context_rows = (std::int64_t{params.step.counts.context_end} + params.ratio - 1) / params.ratio;
  batch.most_rows =
      static_cast<std::int32_t>(std::min(params.keys.table_stride * params.keys.shape.rows, context_rows));
  if (batch.most_rows <= params.top_k) return batch;  // nobody has rows to choose among
  batch.stride = round_up<std::int64_t>(batch.most_rows, kKeyTileRows);
  const std::int64_t token_bytes = batch.stride * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t held = std::clamp<std::int64_t>(static_cast<std::int64_t>(scratch.size()) / token_bytes, 1,
                                                     std::min(tokens, kMostBatchTokens));
  DSV4RT_ASSIGN_OR_RETURN(std::byte* const memory, scratch.take(static_cast<std::size_t>(held * token_bytes), kName));
  batch.tokens = static_cast<std::int32_t>(held);
  batch.scores = reinterpret_cast<float*>(memory);
  const std::span<std::byte> zeros = scratch.zeros();
  if (zeros.size() >= static_cast<std::size_t>(held) * sizeof(SelectState)) {
    batch.state = reinterpret_cast<SelectState*>(zeros.data());
  }
  // Several tokens of a sequence share its decoded keys. Groups change no score.
  batch.group_tokens =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(params.step.counts.longest_entry, 1, kMostRunTokens));
  return batch;
}

SlowPath select_slow_path(const DeviceFacts& facts, const IndexerTopkParams& p) {
  if (!facts.has_sm90a) return slow_path_without_sm90a(facts);
  return p.keys.shape.rows % kTileKeys == 0 ? SlowPath::kNone : SlowPath::kSelectBlockRows;
}

Result<SelectionPlan> plan_selection(const CudaDevice& device, const IndexerTopkParams& params,
                                     const ScoreBatch& batch) {
  SelectionPlan plan;
  if (batch.scores == nullptr) return plan;
  plan.slow = select_slow_path(device.facts(), params);
  const bool wgmma = device.has_sm90a() && plan.slow == SlowPath::kNone;
  plan.scores = wgmma ? ScoreKernel::kWgmma : ScoreKernel::kPortable;
  if (wgmma) {
    DSV4RT_ASSIGN_OR_RETURN(plan.fused_blocks, fused_blocks(device, params, batch));
    if (plan.fused_blocks == 0) plan.counted_blocks = counted_blocks(device, params, batch);
  }
  return plan;
}

Status launch_scores(const CudaDevice& device, const IndexerTopkParams& params, const ScoreBatch& batch,
                     cudaStream_t stream) {
  const bool wgmma = device.has_sm90a() && select_slow_path(device.facts(), params) == SlowPath::kNone;
  return wgmma ? launch_wgmma_scores(device, params, batch, stream)
               : launch_portable_scores(device, params, batch, stream);
}

Status launch_selection(const CudaDevice& device, const IndexerTopkParams& params, const ScoreBatch& batch,
                        const SelectionPlan& plan, cudaStream_t stream) {
  if (plan.fused_blocks > 0) return launch_fused(device, params, batch, plan.fused_blocks, stream);
  if (plan.counted_blocks > 0) return launch_wgmma_selection(device, params, batch, plan.counted_blocks, stream);
  if (plan.scores == ScoreKernel::kWgmma) {
    DSV4RT_RETURN_IF_ERROR(launch_wgmma_scores(device, params, batch, stream));
  } else if (plan.scores == ScoreKernel::kPortable) {
    DSV4RT_RETURN_IF_ERROR(launch_portable_scores(device, params, batch, stream));
  }
  return launch_top_k(device, params, batch, stream);
}

Status CudaOps::indexer_topk(const IndexerTopkParams& params) {
  const std::int64_t tokens = params.step.counts.tokens;
  if (tokens == 0) return {};
  DSV4RT_ASSIGN_OR_RETURN(ScoreBatch batch, plan_scores(params, scratch_));
  const std::int32_t held = batch.tokens;
  for (; batch.first_token < tokens; batch.first_token += held) {
    batch.tokens = static_cast<std::int32_t>(std::min<std::int64_t>(held, tokens - batch.first_token));
    DSV4RT_ASSIGN_OR_RETURN(const SelectionPlan plan, plan_selection(device_, params, batch));
    slow_paths_.tell(plan.slow);
    DSV4RT_RETURN_IF_ERROR(launch_selection(device_, params, batch, plan, stream_));
  }
  return {};
}

}  // namespace dsv4rt::cuda
