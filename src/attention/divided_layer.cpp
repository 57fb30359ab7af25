// A layer of a step whose rows are dealt out over ranks (context parallelism).
//
// A rank makes of its own tokens: latents, window rows, the compressed rows that they alone are pooled into, queries,
// attention, outputs. While it makes the queries, every rank gets what it lacks: the finished compressed rows of the
// others, and around cuts, at the ends of sequences and before kept boundaries the window rows and projections of the
// tokens themselves (context_rows.h). Of these every rank makes the compressed rows behind the cuts, and rings and
// boundary states as one rank would. Then the cache is complete and the same on every rank.
#include <string>
#include <utility>
#include <vector>

#include "attention/attention_layer.h"
#include "attention/context_rows.h"
#include "base/check.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

// A share that ends however its scope is left: MPI or the device may be at work on the parts.
class Share {
 public:
  Share(Communicator& ranks, void* stream) : ranks_(ranks), stream_(stream) {}
  ~Share() {
    try {
      static_cast<void>(end());
    } catch (...) {  // no memory for the text of what happened; the communicator knows that it is lost
    }
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  Status begin(std::span<const SharedPart> parts) {
    DSV4RT_RETURN_IF_ERROR(ranks_.begin_share(parts, stream_));
    begun_ = true;
    return {};
  }
  Status end() { return std::exchange(begun_, false) ? ranks_.end_share(stream_) : Status{}; }

 private:
  Communicator& ranks_;
  void* stream_;
  bool begun_ = false;
};

// The rows that tokens of one piece complete, on their way.
struct FinishedRows {
  OwnedRows of;
  FinishedRowsParams rows;
  std::optional<FinishedRowsParams> index_keys;
};

// Rows of a compressor's input that lie one after another.
void add_projections(std::vector<SharedPart>& parts, const CompressorInput& input, const OwnedRows& of) {
  const std::int64_t row_bytes = input.stride * std::int64_t{sizeof(float)};
  for (const float* rows : {input.kv, input.score}) {
    parts.push_back({.data = const_cast<float*>(rows + of.rows.first * input.stride),
                     .bytes = of.rows.count * row_bytes,
                     .root = of.owner});
  }
}

}  // namespace

struct AttentionLayer::Exchange {
  std::vector<FinishedRows> finished;
  std::vector<RowRange> behind_cuts;  // whose rows every rank makes
  std::vector<SharedPart> parts;
  std::vector<SharedPart> outputs;  // every piece's rows of the output; none if they stay where they were computed
  const BoundaryKeep* keep = nullptr;
};

bool AttentionLayer::divided(const StepView& step) const noexcept {
  return settings_.context != nullptr && step.counts.tokens >= settings_.context_min_tokens;
}

Status AttentionLayer::forward_divided(Ops& ops, const StepView& step, const bf16* x, bf16* out, const Workspace& ws,
                                       StageObserver* observer, bool* cache_written, const BoundaryKeep* keep,
                                       std::span<const std::int32_t> first_tokens) const {
  const auto run = [observer](Stage stage, const auto& work) { return run_stage(observer, stage, work); };
  // All the memory that the layer takes: who runs out of it has exchanged nothing yet.
  DSV4RT_ASSIGN_OR_RETURN(const Exchange exchange, plan_exchange(step, out, ws, keep, first_tokens));
  Share share(*settings_.context, settings_.stream);
  DSV4RT_RETURN_IF_ERROR(run(Stage::kProject, [&]() -> Status {
    DSV4RT_RETURN_IF_ERROR(for_own_rows(
        step, x, out, ws,
        [&](const StepView& rows, const bf16* in, bf16*, const Workspace& w) { return project(ops, rows, in, w); }));
    DSV4RT_RETURN_IF_ERROR(make_own_rows(ops, step, ws, exchange));
    // Others go on with what they get: this rank cannot begin anew any more.
    if (cache_written != nullptr) *cache_written = true;
    return share.begin(exchange.parts);
  }));
  DSV4RT_RETURN_IF_ERROR(run(Stage::kQueries, [&] {
    return for_own_rows(step, x, out, ws, [&](const StepView& rows, const bf16*, bf16*, const Workspace& w) -> Status {
      DSV4RT_RETURN_IF_ERROR(project_queries(ops, rows, w));
      return rotate_queries(ops, rows, w);
    });
  }));
  DSV4RT_RETURN_IF_ERROR(run(Stage::kWriteKv, [&]() -> Status {
    DSV4RT_RETURN_IF_ERROR(share.end());
    return take_rows(ops, step, ws, exchange);
  }));
  if (spec_.indexer) {
    DSV4RT_RETURN_IF_ERROR(run(Stage::kIndexerTopk, [&] {
      return for_own_rows(step, x, out, ws, [&](const StepView& rows, const bf16*, bf16*, const Workspace& w) {
        return indexer_topk(ops, rows, w);
      });
    }));
  }
  DSV4RT_RETURN_IF_ERROR(run(Stage::kAttend, [&] {
    return for_own_rows(step, x, out, ws, [&](const StepView& rows, const bf16*, bf16*, const Workspace& w) {
      return attend(ops, rows, w);
    });
  }));
  DSV4RT_RETURN_IF_ERROR(run(Stage::kStoreWindow, [&] { return store_window(ops, step, ws); }));
  DSV4RT_RETURN_IF_ERROR(run(Stage::kOutput, [&] {
    return for_own_rows(step, x, out, ws, [&](const StepView& rows, const bf16*, bf16* to, const Workspace& w) {
      return project_output(ops, rows, to, w);
    });
  }));
  if (exchange.outputs.empty()) return {};
  return run(Stage::kExchange, [&]() -> Status {
    DSV4RT_RETURN_IF_ERROR(share.begin(exchange.outputs));
    return share.end();
  });
}

Result<AttentionLayer::Exchange> AttentionLayer::plan_exchange(const StepView& step, bf16* out, const Workspace& ws,
                                                               const BoundaryKeep* keep,
                                                               std::span<const std::int32_t> first_tokens) const {
  if (first_tokens.size() != static_cast<std::size_t>(step.counts.sequences) + 1) {
    return Status{StatusCode::kUnsupported, "a step of " + std::to_string(step.counts.tokens) +
                                                " rows is dealt out over ranks: the host has to know where its " +
                                                std::to_string(step.counts.sequences) + " sequences begin"};
  }
  const ContextSplit split(step.counts.tokens, settings_.context->size());
  const bool keeps = keep != nullptr && !keep->captures.empty();
  const ContextRows rows(split, first_tokens, keeps ? keep->captures : std::span<const BoundaryCapture>());
  Exchange exchange;
  exchange.keep = keeps ? keep : nullptr;
  for (std::int32_t index = 0; settings_.context_share_outputs && index < split.pieces(); ++index) {
    const RowRange piece = split.piece(index);
    const std::int64_t hidden = settings_.config.hidden_size;
    if (piece.count == 0) continue;
    exchange.outputs.push_back({.data = out + piece.first * hidden,
                                .bytes = piece.count * hidden * std::int64_t{sizeof(bf16)},
                                .root = split.owner(index)});
  }

  const BlockShape& staged = ws.staged_shape;
  const SharedReach window{.before_cut = static_cast<std::int32_t>(settings_.config.sliding_window) - 1,
                           .behind_cut = 0,
                           .at_end = cache_.window.shape.rows,
                           .before_boundary = keeps ? keep->window.state.rows : 0};
  for (const OwnedRows& of : rows.shared(window)) {
    const auto add = [&](std::int64_t offset, std::int32_t row_bytes) {
      exchange.parts.push_back(
          {.data = ws.staged_rows + offset, .bytes = std::int64_t{of.rows.count} * row_bytes, .root = of.owner});
    };
    add(staged.data_offset(of.rows.first), staged.data_bytes);
    if (staged.scale_bytes > 0) add(staged.scale_offset(of.rows.first), staged.scale_bytes);
  }
  if (spec_.ratio == 0) return exchange;

  // A row behind a cut is pooled from tokens before it if it is one of the first pooled - 1.
  const std::int32_t around_cut = spec_.ratio * (spec_.overlap ? 2 : 1) - 1;
  const SharedReach projections{.before_cut = around_cut,
                                .behind_cut = around_cut,
                                .at_end = cache_.state.ring_rows,
                                .before_boundary = keeps && spec_.overlap ? keep->state.state.rows : 0};
  for (const OwnedRows& of : rows.shared(projections)) {
    add_projections(exchange.parts, main_input(ws), of);
    if (spec_.indexer) add_projections(exchange.parts, index_input(ws), of);
  }
  exchange.behind_cuts = rows.behind_cuts(around_cut);

  std::int64_t used = 0;
  for (const OwnedRows& of : rows.owned(around_cut)) {
    const std::int32_t sequences = rows.sequences_in(of.rows);
    if (sequences == 0) continue;  // padding
    const std::int32_t places = packed_places(of.rows.count, spec_.ratio, sequences);
    const std::int64_t first_byte = used;
    const auto pack = [&](const PagedRows& pool, auto format) {
      const FinishedRowsParams params{.step = rows_of_step(step, of.rows),
                                      .ratio = spec_.ratio,
                                      .ratio_class = ratio_class_,
                                      .rows = pool,
                                      .packed_shape = block_shape(format, places),
                                      .packed = ws.packed_rows + used};
      used += params.packed_shape.block_bytes;
      return params;
    };
    FinishedRows finished{.of = of, .rows = pack(cache_.rows, settings_.row_format), .index_keys = {}};
    if (spec_.indexer) finished.index_keys = pack(cache_.index_keys, settings_.index_format);
    exchange.finished.push_back(finished);
    exchange.parts.push_back({.data = ws.packed_rows + first_byte, .bytes = used - first_byte, .root = of.owner});
  }
  DSV4RT_CHECK(used <= ws.packed_row_bytes);
  return exchange;
}

template <class Work>
Status AttentionLayer::for_own_rows(const StepView& step, const bf16* x, bf16* out, const Workspace& ws,
                                    const Work& work) const {
  const ContextSplit split(step.counts.tokens, settings_.context->size());
  for (const RowRange rows : split.of_rank(settings_.context->rank())) {
    if (rows.count == 0) continue;
    const std::int64_t first = rows.first * settings_.config.hidden_size;
    DSV4RT_RETURN_IF_ERROR(work(rows_of_step(step, rows), x + first, out + first, rows_of_workspace(ws, rows.first)));
  }
  return {};
}

// Row `first` of every array becomes row 0, but for staged rows, which tokens look up by their row of the step.
Workspace AttentionLayer::rows_of_workspace(Workspace ws, std::int32_t first) const {
  const ModelConfig& config = settings_.config;
  const std::int64_t row = first;
  ws.q_latent += row * config.q_lora_rank;
  ws.q += row * config.num_attention_heads * kHeadDim;
  ws.kv += row * kHeadDim;
  if (weights_->compressor) {
    const std::int64_t width = weights_->compressor->wkv->out_features();
    ws.compressor_kv += row * width;
    ws.compressor_score += row * width;
  }
  if (weights_->indexer) {
    const std::int64_t width = weights_->indexer->compressor.wkv->out_features();
    ws.index_kv += row * width;
    ws.index_score += row * width;
    ws.index_q += row * config.index_n_heads * kIndexHeadDim;
    ws.index_head_weight += row * config.index_n_heads;
    ws.topk_indices += row * config.index_topk;
    ws.topk_count += row;
  }
  ws.o += row * config.num_attention_heads * kHeadDim;
  ws.o_latent += row * config.o_groups * config.o_lora_rank;
  return ws;
}

Status AttentionLayer::make_own_rows(Ops& ops, const StepView& step, const Workspace& ws,
                                     const Exchange& exchange) const {
  const std::int32_t rank = settings_.context->rank();
  for (const RowRange rows : ContextSplit(step.counts.tokens, settings_.context->size()).of_rank(rank)) {
    if (rows.count == 0) continue;
    SwaKvParams window = window_rows(rows_of_step(step, rows), rows_of_workspace(ws, rows.first));
    window.staged_first = rows.first;
    DSV4RT_RETURN_IF_ERROR(ops.swa_kv(window));
  }
  for (const FinishedRows& finished : exchange.finished) {
    if (finished.of.owner != rank) continue;
    DSV4RT_RETURN_IF_ERROR(compress_tokens(ops, step, finished.of.rows, ws));
    DSV4RT_RETURN_IF_ERROR(ops.copy_finished_rows(RowDirection::kFromCache, finished.rows));
    if (finished.index_keys) {
      DSV4RT_RETURN_IF_ERROR(ops.copy_finished_rows(RowDirection::kFromCache, *finished.index_keys));
    }
  }
  return {};
}

Status AttentionLayer::rotate_queries(Ops& ops, const StepView& step, const Workspace& ws) const {
  DSV4RT_RETURN_IF_ERROR(ops.query(query(step, ws)));
  return spec_.indexer ? ops.index_query(index_query(step, ws)) : Status{};
}

Status AttentionLayer::take_rows(Ops& ops, const StepView& step, const Workspace& ws, const Exchange& exchange) const {
  for (const FinishedRows& finished : exchange.finished) {
    if (finished.of.owner == settings_.context->rank()) continue;
    DSV4RT_RETURN_IF_ERROR(ops.copy_finished_rows(RowDirection::kToCache, finished.rows));
    if (finished.index_keys) {
      DSV4RT_RETURN_IF_ERROR(ops.copy_finished_rows(RowDirection::kToCache, *finished.index_keys));
    }
  }
  for (const RowRange tokens : exchange.behind_cuts) {
    DSV4RT_RETURN_IF_ERROR(compress_tokens(ops, step, tokens, ws));
  }
  if (spec_.ratio > 0) {
    DSV4RT_RETURN_IF_ERROR(ops.state_store({.step = step, .input = main_input(ws), .state = cache_.state}));
  }
  if (spec_.indexer) {
    DSV4RT_RETURN_IF_ERROR(ops.state_store({.step = step, .input = index_input(ws), .state = cache_.index_state}));
  }
  return exchange.keep == nullptr ? Status{} : keep_boundaries(ops, *exchange.keep, ws);
}

Status AttentionLayer::compress_tokens(Ops& ops, const StepView& step, RowRange tokens, const Workspace& ws) const {
  // The projections stay those of the whole step, in which tokens look up what came before them.
  CompressParams rows = compress_rows(step, ws);
  rows.step = rows_of_step(step, tokens);
  DSV4RT_RETURN_IF_ERROR(ops.compress(rows));
  if (!spec_.indexer) return {};
  CompressParams keys = compress_index_keys(step, ws);
  keys.step = rows.step;
  return ops.compress(keys);
}

}  // namespace dsv4rt
