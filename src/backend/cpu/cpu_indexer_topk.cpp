// The lightning indexer: queries, scores and the choice of rows.
#include <algorithm>
#include <numeric>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/paged_rows.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/step_heads.h"
#include "backend/cpu/step_tokens.h"
#include "backend/cpu/top_k.h"
#include "backend/cpu/worker_scratch.h"
#include "base/arithmetic.h"
#include "base/check.h"
#include "base/try.h"
#include "layout/rounding.h"

namespace dsv4rt::cpu {
namespace {

// Scores of this many (token, row) pairs are held at a time, unless one token alone has more: 16 MiB.
constexpr std::int64_t kScoreBudget = std::int64_t{1} << 22;

// One head: RoPE, Hadamard and rounding to BF16, then the values that the key format can hold. The BF16
// rounding before the format's own matters: without it about 1 % of MXFP4 codes differ.
void prepare_head(const IndexQueryParams& params, const RowKernels& kernels, const RopeRotation& rotation, bf16* head) {
  float values[kIndexHeadDim];
  for (int i = 0; i < kIndexHeadDim; ++i) values[i] = to_float(head[i]);
  rotation.apply(values + kIndexHeadDim - kRopeDim);
  if (params.hadamard) kernels.hadamard_bf16(values);
  if (params.key_format == IndexKeyFormat::kMxfp4) {
    kernels.round_mxfp4(values);
  } else {
    round_through(params.key_format, values);
  }
  for (int i = 0; i < kIndexHeadDim; ++i) head[i] = to_bf16(values[i]);
}

// Scores and selection of a batch of tokens. Every score is computed on its own, so that neither the
// batch nor the partition into row ranges changes it.
class RowSelector {
 public:
  RowSelector(const IndexerTopkParams& params, const RowKernels& kernels, const WorkerScratch& scratch,
              std::int64_t score_stride)
      : params_(params),
        kernels_(kernels),
        scratch_(scratch),
        score_stride_(score_stride),
        padded_(round_up(params.heads, kHeadLanes)) {}

  // Floats of scratch that score() uses per worker.
  static std::int64_t worker_values(std::int32_t heads) {
    const std::int64_t padded = round_up(heads, kHeadLanes);
    return padded * (kIndexHeadDim + 1 + kTileRows) + std::int64_t{kTileRows} * kDecodedKeyStride;
  }

  [[nodiscard]] std::int32_t visible(std::int64_t token) const {
    const TokenPosition place = token_position(params_.step, token);
    return place.real ? visible_rows(place.position, params_.ratio) : 0;
  }

  // Rows [begin, end) of the token into its row of scores.
  void score(std::int64_t token, std::int64_t batch_index, std::int32_t begin, std::int32_t end, int worker) const {
    float* columns = scratch_.of_worker(worker);
    float* weight = columns + padded_ * kIndexHeadDim;
    float* head_scores = weight + padded_;
    float* keys = head_scores + padded_ * kTileRows;
    kernels_.heads_to_lanes(params_.q + token * params_.heads * kIndexHeadDim, params_.heads, kIndexHeadDim, padded_,
                            columns);
    for (int h = 0; h < padded_; ++h) {
      weight[h] = h < params_.heads
                      ? to_float(params_.head_weight[token * params_.head_weight_stride + h]) * params_.head_scale
                      : 0.0f;
    }
    const std::int32_t slot = token_position(params_.step, token).slot;
    float* out = scores_of(batch_index);
    for (std::int32_t tile = begin; tile < end; tile += kTileRows) {
      const std::int32_t count = std::min(kTileRows, end - tile);
      for (std::int32_t i = 0; i < count; ++i) decode_key(slot, tile + i, keys + i * kDecodedKeyStride);
      kernels_.scores(columns, padded_, kIndexHeadDim, keys, kDecodedKeyStride, count, head_scores);
      kernels_.index_sum(head_scores, padded_, params_.heads, count, weight, out + tile);
    }
  }

  void select(std::int64_t token, std::int64_t batch_index) const {
    const std::int32_t rows = visible(token);
    const std::int32_t count = std::min(rows, params_.top_k);
    std::int32_t* topk_indices = params_.topk_indices + token * params_.top_k;
    if (rows <= params_.top_k) {
      std::iota(topk_indices, topk_indices + count, 0);
    } else {
      top_k({scores_of(batch_index), static_cast<std::size_t>(rows)}, count, topk_indices);
    }
    std::fill(topk_indices + count, topk_indices + params_.top_k, -1);
    params_.topk_count[token] = count;
  }

 private:
  [[nodiscard]] float* scores_of(std::int64_t batch_index) const {
    return scratch_.shared() + batch_index * score_stride_;
  }

  void decode_key(std::int32_t slot, std::int32_t row, float* out) const {
    const PagedRows& keys = params_.keys;
    kernels_.decode_key(params_.key_format, keys.shape, keys.blocks + block_offset(keys, slot, row),
                        row % keys.shape.rows, out);
  }

  const IndexerTopkParams& params_;
  const RowKernels& kernels_;
  const WorkerScratch& scratch_;
  std::int64_t score_stride_;
  std::int32_t padded_;
};

}  // namespace

Status CpuOps::index_query(const IndexQueryParams& params) {
  const RowKernels& kernels = row_kernels(isa_);
  return for_each_head(team_, params.step, params.heads, params.rope,
                       [&](std::int64_t item, const RopeRotation& rotation) {
                         prepare_head(params, kernels, rotation, params.q + item * kIndexHeadDim);
                       });
}

std::int64_t CpuOps::indexer_topk_scratch_bytes(const StepShapes& shapes, int threads) {
  std::int64_t bytes = 0;
  for (const CompressedRowsShape& rows : shapes.compressed) {
    if (rows.index_heads == 0) continue;
    const std::int64_t stride = round_up<std::int64_t>(shapes.max_context_tokens / rows.ratio, kTileRows);
    const std::int64_t scores = std::min(shapes.max_tokens * stride, std::max(kScoreBudget, stride));
    bytes = std::max(bytes, WorkerScratch::bytes(threads, scores, RowSelector::worker_values(rows.index_heads)));
  }
  return bytes;
}

Status CpuOps::indexer_topk(const IndexerTopkParams& params) {
  DSV4RT_CHECK(params.ratio > 0 && params.top_k > 0 && params.heads > 0);
  const std::int64_t tokens = params.step.counts.tokens;
  std::int64_t most_rows = 0;  // over the tokens that need scores
  for (std::int64_t token = 0; token < tokens; ++token) {
    if (params.step.token_sequence[token] < 0) continue;
    const std::int64_t rows = visible_rows(params.step.token_position[token], params.ratio);
    if (rows > params.top_k) most_rows = std::max(most_rows, rows);
  }
  const std::int64_t stride = round_up<std::int64_t>(most_rows, kTileRows);
  const std::int64_t batch = most_rows == 0 ? tokens : std::clamp<std::int64_t>(kScoreBudget / stride, 1, tokens);
  const bool scores = most_rows > 0;
  DSV4RT_ASSIGN_OR_RETURN(const WorkerScratch scratch,
                          WorkerScratch::take(scratch_, team_.threads(), scores ? batch * stride : 0,
                                              scores ? RowSelector::worker_values(params.heads) : 0, "index scores"));
  const RowSelector selector(params, row_kernels(isa_), scratch, stride);

  for (std::int64_t first = 0; first < tokens; first += batch) {
    const std::int64_t count = std::min(batch, tokens - first);
    if (scores) {
      // Enough items for the team to share a single token's rows, as few as that allows otherwise.
      const std::int64_t items_wanted = std::int64_t{8} * team_.threads();
      const std::int64_t range =
          std::max<std::int64_t>(kTileRows, round_up<std::int64_t>(ceil_div(stride * count, items_wanted), kTileRows));
      const std::int64_t ranges = ceil_div(stride, range);
      const auto score_items = [&](std::int64_t begin, std::int64_t end, int worker) {
        for (std::int64_t item = begin; item < end; ++item) {
          const std::int64_t index = item / ranges;
          const std::int64_t rows = selector.visible(first + index);
          const std::int64_t from = item % ranges * range;
          if (rows <= params.top_k || from >= rows) continue;
          selector.score(first + index, index, static_cast<std::int32_t>(from),
                         static_cast<std::int32_t>(std::min(rows, from + range)), worker);
        }
      };
      DSV4RT_RETURN_IF_ERROR(team_.parallel_for(count * ranges, score_items));
    }
    DSV4RT_RETURN_IF_ERROR(team_.parallel_for(count, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t index = begin; index < end; ++index) selector.select(first + index, index);
    }));
  }
  return {};
}

}  // namespace dsv4rt::cpu
