// A layer of a step whose rows are dealt out over ranks (context parallelism).
//
// A rank makes of its own tokens: latents, window rows, the compressed rows that they alone are pooled into, queries,
// attention, outputs. While it makes the queries, every rank gets what it lacks: the finished compressed rows of the
// others, and around cuts, at the ends of sequences and before kept boundaries the window rows and projections of the
// tokens themselves (context_rows.h). Of these every rank makes the compressed rows behind the cuts, and rings and
// boundary states as one rank would. Then the cache is complete and the same on every rank.
//
// A step that hands its sequences over to one rank leaves a complete cache there alone: the others get, and make, what
// their own tokens read, and nothing that only later steps would.
#include <string>
#include <utility>
#include <vector>

#include "attention/attention_layer.h"
#include "attention/context_rows.h"
#include "attention/layer_exchange.h"
#include "base/check.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

// A share that ends however its scope is left: MPI or the device may be at work on the parts.
class Share {
 public:
  Share(Communicator& ranks, const SharePlace& place, void* stream) : ranks_(ranks), place_(place), stream_(stream) {}
  ~Share() {
    try {
      static_cast<void>(end());
    } catch (...) {  // no memory for the text of what happened; the communicator knows that it is lost
    }
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  Status begin(std::span<const SharedPart> parts) {
    DSV4RT_RETURN_IF_ERROR(ranks_.begin_share(parts, place_, stream_));
    begun_ = true;
    return {};
  }
  Status end() { return std::exchange(begun_, false) ? ranks_.end_share(stream_) : Status{}; }

 private:
  Communicator& ranks_;
  SharePlace place_;
  void* stream_;
  bool begun_ = false;
};

// The rows that tokens of one piece complete, on their way.
struct FinishedRows {
  OwnedRows of;
  bool taken = false;    // this rank, which has not made them, needs them
  bool travels = false;  // any rank does
  FinishedRowsParams rows;
  std::optional<FinishedRowsParams> index_keys;
};

}  // namespace

struct AttentionLayer::Exchange {
  ContextSplit split;
  bool keeps_cache = true;  // rings and boundary states of this rank are part of what is there afterwards
  std::vector<FinishedRows> finished = {};
  std::vector<RowRange> behind_cuts = {};  // whose rows every rank makes that reads them
  std::vector<SharedPart> parts = {};
  std::vector<SharedPart> outputs = {};  // every piece's rows of the output; none if they stay where they were computed
  const BoundaryKeep* keep = nullptr;
};

bool AttentionLayer::divided(const StepView& step, const DealtStep& dealt) const noexcept {
  return settings_.context != nullptr && !dealt.alone && step.counts.tokens >= settings_.context_min_tokens;
}

Status AttentionLayer::forward_divided(Ops& ops, const StepView& step, const bf16* x, bf16* out, const Workspace& ws,
                                       StageObserver* observer, bool* cache_written, const BoundaryKeep* keep,
                                       const DealtStep& dealt) const {
  const auto run = [observer](Stage stage, const auto& work) { return run_stage(observer, stage, work); };
  // All the memory that the layer takes: who runs out of it has exchanged nothing yet.
  DSV4RT_ASSIGN_OR_RETURN(const Exchange exchange, plan_exchange(step, out, ws, keep, dealt));
  const SharePlace place{.step = dealt.number, .content = dealt.content, .layer = dealt.layer};
  Share share(*settings_.context, place, settings_.stream);
  DSV4RT_RETURN_IF_ERROR(run(Stage::kProject, [&]() -> Status {
    DSV4RT_RETURN_IF_ERROR(for_own_rows(
        exchange, step, x, out, ws,
        [&](const StepView& rows, const bf16* in, bf16*, const Workspace& w) { return project(ops, rows, in, w); }));
    DSV4RT_RETURN_IF_ERROR(make_own_rows(ops, step, ws, exchange));
    // Others go on with what they get: this rank cannot begin anew any more.
    if (cache_written != nullptr) *cache_written = true;
    return share.begin(exchange.parts);
  }));
  DSV4RT_RETURN_IF_ERROR(run(Stage::kQueries, [&] {
    return for_own_rows(exchange, step, x, out, ws,
                        [&](const StepView& rows, const bf16*, bf16*, const Workspace& w) -> Status {
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
      return for_own_rows(
          exchange, step, x, out, ws,
          [&](const StepView& rows, const bf16*, bf16*, const Workspace& w) { return indexer_topk(ops, rows, w); });
    }));
  }
  DSV4RT_RETURN_IF_ERROR(run(Stage::kAttend, [&] {
    return for_own_rows(exchange, step, x, out, ws, [&](const StepView& rows, const bf16*, bf16*, const Workspace& w) {
      return ops.attend(attend_params(ops, rows, w));
    });
  }));
  if (exchange.keeps_cache) {
    DSV4RT_RETURN_IF_ERROR(run(Stage::kStoreWindow, [&] { return store_window(ops, step, ws); }));
  }
  DSV4RT_RETURN_IF_ERROR(run(Stage::kOutput, [&] {
    return for_own_rows(exchange, step, x, out, ws,
                        [&](const StepView& rows, const bf16*, bf16* to, const Workspace& w) {
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
                                                               const BoundaryKeep* keep, const DealtStep& dealt) const {
  if (dealt.first_tokens.size() != static_cast<std::size_t>(step.counts.sequences) + 1) {
    return Status{StatusCode::kUnsupported, "a step of " + std::to_string(step.counts.tokens) +
                                                " rows is dealt out over ranks: the host has to know where its " +
                                                std::to_string(step.counts.sequences) + " sequences begin"};
  }
  const std::int32_t rank = settings_.context->rank();
  const bool handed_over = dealt.hand_over_to >= 0;
  const ContextSplit split(step.counts.tokens, settings_.context->size(), handed_over ? dealt.hand_over_to : 0);
  const bool keeps = keep != nullptr && !keep->captures.empty();
  const ContextRows rows(split, dealt.first_tokens, keeps ? keep->captures : std::span<const BoundaryCapture>(),
                         handed_over ? CacheOn::kFirstPlace : CacheOn::kEveryRank);
  const LayerReach reach =
      layer_reach(spec_, settings_.config.sliding_window, cache_.window.shape.rows, cache_.state.ring_rows,
                  keeps ? keep->window.state.rows : 0, keeps ? keep->state.state.rows : 0);
  const LayerExchange layer = layer_exchange(rows, spec_, reach);
  Exchange exchange{.split = split, .keeps_cache = rows.keeps(rank)};
  exchange.keep = keeps && exchange.keeps_cache ? keep : nullptr;
  for (std::int32_t index = 0; settings_.context_share_outputs && index < split.pieces(); ++index) {
    const RowRange piece = split.piece(index);
    const std::int64_t hidden = settings_.config.hidden_size;
    if (piece.count == 0) continue;
    exchange.outputs.push_back({.data = out + piece.first * hidden,
                                .bytes = piece.count * hidden * std::int64_t{sizeof(bf16)},
                                .root = split.owner(index)});
  }
  const auto add = [&](const OwnedRows& of, void* data, std::int64_t bytes) {
    exchange.parts.push_back({.data = data,
                              .bytes = bytes,
                              .root = of.owner,
                              .first_reader = split.first(),
                              .readers = handed_over ? of.readers : SharedPart::kEveryRank});
  };

  const BlockShape& staged = ws.staged_shape;
  for (const OwnedRows& of : layer.window) {
    const std::int64_t count = of.rows.count;
    add(of, ws.staged_rows + staged.data_offset(of.rows.first), count * staged.data_bytes);
    if (staged.scale_bytes > 0) {
      add(of, ws.staged_rows + staged.scale_offset(of.rows.first), count * staged.scale_bytes);
    }
  }
  if (spec_.ratio == 0) return exchange;

  const auto add_projections = [&](const CompressorInput& input, const OwnedRows& of) {
    for (const float* values : {input.kv, input.score}) {
      add(of, const_cast<float*>(values + of.rows.first * input.stride),
          of.rows.count * input.stride * std::int64_t{sizeof(float)});
    }
  };
  for (const OwnedRows& of : layer.projections) {
    add_projections(main_input(ws), of);
    if (spec_.indexer) add_projections(index_input(ws), of);
  }
  exchange.behind_cuts = rows.behind_cuts(reach.around_cut, rank);

  std::int64_t used = 0;
  for (const PackedRange& range : layer.finished) {
    const std::int64_t first_byte = used;
    const auto pack = [&](const PagedRows& pool, auto format) {
      const FinishedRowsParams params{.step = rows_of_step(step, range.of.rows),
                                      .ratio = spec_.ratio,
                                      .ratio_class = ratio_class_,
                                      .rows = pool,
                                      .packed_shape = block_shape(format, range.places),
                                      .packed = ws.packed_rows + used};
      used += params.packed_shape.block_bytes;
      return params;
    };
    FinishedRows finished{.of = range.of,
                          .taken = range.of.owner != rank && rows.reads(range.of, rank),
                          .travels = rows.travel(range.of),
                          .rows = pack(cache_.rows, settings_.row_format),
                          .index_keys = {}};
    if (spec_.indexer) finished.index_keys = pack(cache_.index_keys, settings_.index_format);
    exchange.finished.push_back(finished);
    if (finished.travels) add(range.of, ws.packed_rows + first_byte, used - first_byte);
  }
  DSV4RT_CHECK(used <= ws.packed_row_bytes);
  return exchange;
}

template <class Work>
Status AttentionLayer::for_own_rows(const Exchange& exchange, const StepView& step, const bf16* x, bf16* out,
                                    const Workspace& ws, const Work& work) const {
  for (const RowRange rows : exchange.split.of_rank(settings_.context->rank())) {
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
  // What a piece leaves of one is read after another piece's. Pieces begin where scales are aligned (ContextSplit).
  for (EncodedRows* rows : {&ws.encoded_o, &ws.encoded_latent}) {
    if (rows->codes == nullptr) continue;
    rows->codes += row * rows->width;
    rows->scales += row;
  }
  return ws;
}

Status AttentionLayer::make_own_rows(Ops& ops, const StepView& step, const Workspace& ws,
                                     const Exchange& exchange) const {
  const std::int32_t rank = settings_.context->rank();
  for (const RowRange rows : exchange.split.of_rank(rank)) {
    if (rows.count == 0) continue;
    SwaKvParams window = window_rows(rows_of_step(step, rows), rows_of_workspace(ws, rows.first));
    window.staged_first = rows.first;
    DSV4RT_RETURN_IF_ERROR(ops.swa_kv(window));
  }
  for (const FinishedRows& finished : exchange.finished) {
    if (finished.of.owner != rank) continue;
    DSV4RT_RETURN_IF_ERROR(compress_tokens(ops, step, finished.of.rows, ws));
    if (!finished.travels) continue;
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
    if (!finished.taken) continue;
    DSV4RT_RETURN_IF_ERROR(ops.copy_finished_rows(RowDirection::kToCache, finished.rows));
    if (finished.index_keys) {
      DSV4RT_RETURN_IF_ERROR(ops.copy_finished_rows(RowDirection::kToCache, *finished.index_keys));
    }
  }
  for (const RowRange tokens : exchange.behind_cuts) {
    DSV4RT_RETURN_IF_ERROR(compress_tokens(ops, step, tokens, ws));
  }
  if (!exchange.keeps_cache) return {};
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
