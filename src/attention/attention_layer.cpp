#include "attention/attention_layer.h"

#include <array>
#include <cmath>

#include "base/check.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

constexpr std::size_t kMostOutputGroups = 128;  // what a config may ask for (config_limits.cpp)

}  // namespace

AttentionLayer::AttentionLayer(const AttentionSettings& settings, const LayerSpec& spec, int ratio_class,
                               std::shared_ptr<const LayerWeights> weights, const LayerCache& cache,
                               const float* inverse_frequency)
    : settings_(settings),
      spec_(spec),
      ratio_class_(ratio_class),
      weights_(std::move(weights)),
      cache_(cache),
      rope_{.inverse_frequency = inverse_frequency, .inverse = false} {}

// The whole layer. Window rows are staged before attention. They enter the ring at once where the ring
// keeps what the step's tokens still read, after attention where a long chunk would overwrite it.
Status AttentionLayer::forward(Ops& ops, const StepView& step, const bf16* x, bf16* out, const Workspace& ws,
                               StageObserver* observer, bool* cache_written, const BoundaryKeep* keep,
                               const DealtStep& dealt) const {
  if (divided(step, dealt)) return forward_divided(ops, step, x, out, ws, observer, cache_written, keep, dealt);
  const auto run = [observer](Stage stage, const auto& work) { return run_stage(observer, stage, work); };
  DSV4RT_RETURN_IF_ERROR(run(Stage::kProject, [&] { return project(ops, step, x, ws); }));
  DSV4RT_RETURN_IF_ERROR(run(Stage::kQueries, [&] { return project_queries(ops, step, ws); }));
  AttendParams attention = attend_params(ops, step, ws);
  DSV4RT_ASSIGN_OR_RETURN(const bool norms_queries, ops.norms_queries(attention));
  if (norms_queries) attention.query_eps = static_cast<float>(settings_.config.rms_norm_eps);
  if (cache_written != nullptr) *cache_written = true;
  DSV4RT_RETURN_IF_ERROR(run(Stage::kWriteKv, [&]() -> Status {
    DSV4RT_RETURN_IF_ERROR(write_kv(ops, step, !norms_queries, ws));
    return keep == nullptr || keep->captures.empty() ? Status{} : keep_boundaries(ops, *keep, ws);
  }));
  if (spec_.indexer) {
    DSV4RT_RETURN_IF_ERROR(run(Stage::kIndexerTopk, [&] { return indexer_topk(ops, step, ws); }));
  }
  DSV4RT_RETURN_IF_ERROR(run(Stage::kAttend, [&] { return ops.attend(attention); }));
  if (!stores_window_at_once(step)) {
    DSV4RT_RETURN_IF_ERROR(run(Stage::kStoreWindow, [&] { return store_window(ops, step, ws); }));
  }
  DSV4RT_RETURN_IF_ERROR(run(Stage::kOutput, [&] { return project_output(ops, step, out, ws); }));
  if (settings_.ranks == nullptr) return {};
  return run(Stage::kExchange, [&] { return add_ranks(step, out, ws); });
}

// Everything that reads x, in one call so that x is read (and rounded to FP8) once.
Status AttentionLayer::project(Ops& ops, const StepView& step, const bf16* x, const Workspace& ws) const {
  std::array<LinearCall, 7> calls;
  std::size_t count = 0;
  const auto add = [&](const PackedLinear& weight, void* y, OutputType output) {
    calls[count++] = {.x = x,
                      .x_stride = settings_.config.hidden_size,
                      .weight = &weight,
                      .y = y,
                      .y_stride = weight.out_features(),
                      .output = output};
  };
  add(*weights_->wq_a, ws.q_latent, OutputType::kBf16);
  add(*weights_->wkv, ws.kv, OutputType::kBf16);
  if (weights_->compressor) {
    add(*weights_->compressor->wkv, ws.compressor_kv, OutputType::kF32);
    add(*weights_->compressor->wgate, ws.compressor_score, OutputType::kF32);
  }
  if (weights_->indexer) {
    add(*weights_->indexer->compressor.wkv, ws.index_kv, OutputType::kF32);
    add(*weights_->indexer->compressor.wgate, ws.index_score, OutputType::kF32);
    add(*weights_->indexer->weights_proj, ws.index_head_weight, OutputType::kBf16);
  }
  return ops.linear(step.counts.tokens, std::span(calls.data(), count));
}

// Latent norm, then attention and indexer queries from the same latent.
Status AttentionLayer::project_queries(Ops& ops, const StepView& step, const Workspace& ws) const {
  const ModelConfig& config = settings_.config;
  const RmsNormParams norm{.tokens = step.counts.tokens,
                           .width = static_cast<std::int32_t>(config.q_lora_rank),
                           .x = ws.q_latent,
                           .weight = weights_->q_norm.as<bf16>(),
                           .eps = static_cast<float>(config.rms_norm_eps),
                           .y = ws.q_latent};
  std::array<LinearCall, 2> calls;
  std::size_t count = 0;
  const auto add = [&](const PackedLinear& weight, bf16* y) {
    calls[count++] = {.x = ws.q_latent,
                      .x_stride = config.q_lora_rank,
                      .weight = &weight,
                      .y = y,
                      .y_stride = weight.out_features(),
                      .output = OutputType::kBf16};
  };
  add(*weights_->wq_b, ws.q);
  if (weights_->indexer) add(*weights_->indexer->wq_b, ws.index_q);
  return ops.normed_linear(norm, std::span(calls.data(), count));
}

// Queries get their norm and rotation, but where attention does that; the step's tokens enter the window, and blocks of
// tokens that complete become rows before their projections enter the state rings.
Status AttentionLayer::write_kv(Ops& ops, const StepView& step, bool norm_queries, const Workspace& ws) const {
  WriteKvParams params{.query = {},
                       .index_query = {},
                       .window = window_rows(step, ws),
                       .swa_ring = {},
                       .compress = {},
                       .index_compress = {}};
  if (norm_queries) params.query = query(step, ws);
  if (stores_window_at_once(step)) params.swa_ring = cache_.window;
  if (spec_.ratio > 0) params.compress = compress_rows(step, ws);
  if (spec_.indexer) {
    params.index_query = index_query(step, ws);
    params.index_compress = compress_index_keys(step, ws);
  }
  return ops.write_kv(params);
}

// Before anything overwrites what was staged and projected.
Status AttentionLayer::keep_boundaries(Ops& ops, const BoundaryKeep& keep, const Workspace& ws) const {
  KeepBoundaryParams params{.captures = keep.captures,
                            .states = keep.states,
                            .staged_shape = ws.staged_shape,
                            .staged = ws.staged_rows,
                            .window = keep.window,
                            .compressor = {},
                            .index_compressor = {}};
  if (spec_.overlap) {
    params.compressor = {.input = main_input(ws), .rows = keep.state};
    if (spec_.indexer) params.index_compressor = {.input = index_input(ws), .rows = keep.index_state};
  }
  return ops.keep_boundary_rows(params);
}

bool AttentionLayer::stores_window_at_once(const StepView& step) const {
  return ring_keeps_needed_rows(cache_.window.shape.rows, static_cast<std::int32_t>(settings_.config.sliding_window),
                                step.counts);
}

QueryParams AttentionLayer::query(const StepView& step, const Workspace& ws) const {
  return {.step = step,
          .heads = static_cast<std::int32_t>(settings_.config.num_attention_heads),
          .q = ws.q,
          .eps = static_cast<float>(settings_.config.rms_norm_eps),
          .rope = rope_};
}

SwaKvParams AttentionLayer::window_rows(const StepView& step, const Workspace& ws) const {
  return {.step = step,
          .kv = ws.kv,
          .norm_weight = weights_->kv_norm.as<bf16>(),
          .eps = static_cast<float>(settings_.config.rms_norm_eps),
          .rope = rope_,
          .format = settings_.row_format,
          .staged_shape = ws.staged_shape,
          .staged = ws.staged_rows};
}

IndexQueryParams AttentionLayer::index_query(const StepView& step, const Workspace& ws) const {
  return {.step = step,
          .heads = static_cast<std::int32_t>(settings_.config.index_n_heads),
          .q = ws.index_q,
          .rope = settings_.profile.index_rope ? rope_ : RopeParams{},
          .hadamard = settings_.profile.index_hadamard,
          .key_format = settings_.index_format};
}

CompressorInput AttentionLayer::main_input(const Workspace& ws) const {
  return {.kv = ws.compressor_kv,
          .score = ws.compressor_score,
          .stride = weights_->compressor->wkv->out_features(),
          .ape = weights_->compressor->ape.as<float>(),
          .ratio = spec_.ratio,
          .ratio_class = ratio_class_,
          .dim = kHeadDim,
          .overlap = spec_.overlap};
}

CompressorInput AttentionLayer::index_input(const Workspace& ws) const {
  return {.kv = ws.index_kv,
          .score = ws.index_score,
          .stride = weights_->indexer->compressor.wkv->out_features(),
          .ape = weights_->indexer->compressor.ape.as<float>(),
          .ratio = spec_.ratio,
          .ratio_class = ratio_class_,
          .dim = kIndexHeadDim,
          .overlap = spec_.overlap};
}

CompressParams AttentionLayer::compress_rows(const StepView& step, const Workspace& ws) const {
  const Profile& profile = settings_.profile;
  return {.step = step,
          .input = main_input(ws),
          .state = cache_.state,
          .norm_weight = profile.compressor_norm ? weights_->compressor->norm.as<bf16>() : nullptr,
          .eps = static_cast<float>(settings_.config.rms_norm_eps),
          .rope = rope_,
          .anchor = profile.rope_anchor,
          .hadamard = false,
          .is_index_key = false,
          .row_format = settings_.row_format,
          .key_format = settings_.index_format,
          .rows = cache_.rows};
}

// The same as compress_rows, with the indexer's own compressor and rounding.
CompressParams AttentionLayer::compress_index_keys(const StepView& step, const Workspace& ws) const {
  const Profile& profile = settings_.profile;
  CompressParams params = compress_rows(step, ws);
  params.input = index_input(ws);
  params.state = cache_.index_state;
  params.norm_weight = profile.compressor_norm ? weights_->indexer->compressor.norm.as<bf16>() : nullptr;
  params.rope = profile.index_rope ? rope_ : RopeParams{};
  params.hadamard = profile.index_hadamard;
  params.is_index_key = true;
  params.rows = cache_.index_keys;
  return params;
}

Status AttentionLayer::indexer_topk(Ops& ops, const StepView& step, const Workspace& ws) const {
  const ModelConfig& config = settings_.config;
  const float scale = 1.0F / std::sqrt(static_cast<float>(kIndexHeadDim) * static_cast<float>(config.index_n_heads));
  return ops.indexer_topk({.step = step,
                           .heads = static_cast<std::int32_t>(config.index_n_heads),
                           .ratio = spec_.ratio,
                           .top_k = static_cast<std::int32_t>(config.index_topk),
                           .q = ws.index_q,
                           .head_weight = ws.index_head_weight,
                           .head_weight_stride = config.index_n_heads,
                           .head_scale = scale,
                           .key_format = settings_.index_format,
                           .keys = cache_.index_keys,
                           .topk_indices = ws.topk_indices,
                           .topk_count = ws.topk_count});
}

// The output is turned back by the rotation that K = V carries.
AttendParams AttentionLayer::attend_params(const Ops& ops, const StepView& step, const Workspace& ws) const {
  const ModelConfig& config = settings_.config;
  return {.step = step,
          .heads = static_cast<std::int32_t>(config.num_attention_heads),
          .window = static_cast<std::int32_t>(config.sliding_window),
          .q = ws.q,
          .sink = weights_->attn_sink.as<float>(),
          .ring = cache_.window,
          .staged_shape = ws.staged_shape,
          .staged = ws.staged_rows,
          .ratio = spec_.ratio,
          .row_format = settings_.row_format,
          .rows = cache_.rows,
          .topk_indices = spec_.indexer ? ws.topk_indices : nullptr,
          .topk_count = spec_.indexer ? ws.topk_count : nullptr,
          .topk_stride = config.index_topk,
          .output_rope = {.inverse_frequency = rope_.inverse_frequency, .inverse = true},
          .o = ws.o,
          .encoded = hands_on_codes(ops, step, ws) ? std::optional(ws.encoded_o) : std::nullopt};
}

bool AttentionLayer::hands_on_codes(const Ops& ops, const StepView& step, const Workspace& ws) const {
  return ws.encoded_o.codes != nullptr && ops.takes_encoded_rows(step.counts.tokens, *weights_->wo_a.front());
}

Status AttentionLayer::store_window(Ops& ops, const StepView& step, const Workspace& ws) const {
  return ops.swa_cache_write(
      {.step = step, .staged_shape = ws.staged_shape, .staged = ws.staged_rows, .ring = cache_.window});
}

// The grouped low-rank output projection.
Status AttentionLayer::project_output(Ops& ops, const StepView& step, bf16* out, const Workspace& ws) const {
  const ModelConfig& config = settings_.config;
  const std::int64_t o_width = config.num_attention_heads * kHeadDim;
  const std::int64_t group_width = o_width / config.o_groups;
  const std::int64_t latent_width = config.o_groups * config.o_lora_rank;
  std::array<LinearCall, kMostOutputGroups> groups;
  DSV4RT_CHECK(weights_->wo_a.size() <= groups.size());
  const bool encoded = hands_on_codes(ops, step, ws);
  for (std::size_t g = 0; g < weights_->wo_a.size(); ++g) {
    const auto group = static_cast<std::int64_t>(g);
    groups[g] = {.x = encoded ? nullptr : ws.o + group * group_width,
                 .x_stride = encoded ? 0 : o_width,
                 .weight = weights_->wo_a[g].get(),
                 .y = ws.o_latent + group * config.o_lora_rank,
                 .y_stride = latent_width,
                 .output = OutputType::kBf16,
                 .encoded = encoded ? std::optional(ws.encoded_o) : std::nullopt,
                 .encoded_column = encoded ? group * group_width : 0};
  }
  const auto up = std::span(groups.data(), weights_->wo_a.size());
  const std::int32_t tokens = step.counts.tokens;
  bool encoded_latent = encoded && ops.takes_encoded_rows(tokens, *weights_->wo_b);
  if (encoded_latent) {
    DSV4RT_ASSIGN_OR_RETURN(encoded_latent, ops.encodes_outputs(tokens, up));
  }
  for (std::size_t g = 0; encoded_latent && g < up.size(); ++g) {
    up[g].encoded_y = ws.encoded_latent;
    up[g].encoded_y_column = static_cast<std::int64_t>(g) * config.o_lora_rank;
  }
  DSV4RT_RETURN_IF_ERROR(ops.linear(tokens, up));

  LinearCall down{.x = ws.o_latent,
                  .x_stride = latent_width,
                  .weight = weights_->wo_b.get(),
                  .y = settings_.ranks == nullptr ? static_cast<void*>(out) : ws.rank_output,
                  .y_stride = config.hidden_size,
                  .output = settings_.ranks == nullptr ? OutputType::kBf16 : OutputType::kF32};
  if (encoded_latent) down.encoded = ws.encoded_latent;
  return ops.linear(tokens, std::span(&down, 1));
}

// The ranks' outputs are added before they are rounded: with one rank or several, the output is rounded once.
Status AttentionLayer::add_ranks(const StepView& step, bf16* out, const Workspace& ws) const {
  return settings_.ranks->all_reduce_sum(ws.rank_output, ElementType::kF32, out, ElementType::kBf16,
                                         step.counts.tokens * settings_.config.hidden_size, settings_.stream);
}

}  // namespace dsv4rt
