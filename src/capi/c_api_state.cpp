// The C interface: state, configuration and cache views as data.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/try.h"
#include "capi/c_api_constants.h"
#include "capi/c_api_handle.h"
#include "capi/c_api_structs.h"
#include "layout/row_format.h"

namespace dsv4rt::c_api {
namespace {

static_assert(equals(DSV4RT_LAYER_SWA, AttentionKind::kSlidingWindow) &&
              equals(DSV4RT_LAYER_CSA, AttentionKind::kCompressedSparse) &&
              equals(DSV4RT_LAYER_HCA, AttentionKind::kHeavilyCompressed));
static_assert(sizeof(dsv4rt_sequence_state::blocks) == kCacheRoleCount * sizeof(std::int64_t));

Result<CacheRole> read_role(const char* function, std::int32_t role) {
  if (role >= 0 && role < kCacheRoleCount) return static_cast<CacheRole>(role);
  return Status{StatusCode::kInvalidArgument, std::string(function) + ": role " + std::to_string(role) +
                                                  "; accepted: DSV4RT_ROLE_SWA_KV (0) to DSV4RT_ROLE_HCA_STATE (" +
                                                  std::to_string(kCacheRoleCount - 1) + ")"};
}

dsv4rt_config config_of(const Engine& engine) {
  const ModelConfig& config = engine.config();
  const CacheFormats& formats = engine.formats();
  dsv4rt_config values{};
  values.hidden_size = config.hidden_size;
  values.layers = config.num_hidden_layers;
  values.num_attention_heads = config.num_attention_heads;
  values.head_dim = kHeadDim;
  values.q_lora_rank = config.q_lora_rank;
  values.o_lora_rank = config.o_lora_rank;
  values.o_groups = config.o_groups;
  values.sliding_window = config.sliding_window;
  values.index_n_heads = config.index_n_heads;
  values.index_head_dim = kIndexHeadDim;
  values.index_topk = config.index_topk;
  values.max_position_embeddings = config.max_position_embeddings;
  values.draft_budget_tokens = formats.draft_budget_tokens;
  values.csa_rows_per_block = formats.csa_rows_per_block;
  values.hca_rows_per_block = formats.hca_rows_per_block;
  values.row_format = row_format_name(formats.rows).data();  // string literals
  values.index_format = index_key_format_name(formats.index_keys).data();
  return values;
}

Status layer_info(const Engine& engine, std::size_t index, dsv4rt_layer_info* info) {
  if (info == nullptr) return null_argument("dsv4rt_engine_layer_info", "info");
  if (index >= engine.layer_specs().size()) {
    return {StatusCode::kInvalidArgument, "dsv4rt_engine_layer_info: index " + std::to_string(index) + "; " +
                                              std::to_string(engine.layer_specs().size()) + " layers are loaded"};
  }
  const LayerSpec& spec = engine.layer_specs()[index];
  dsv4rt_layer_info values{};
  values.kind_name = attention_kind_name(spec.kind).data();  // a string literal
  values.layer = spec.id.value;
  values.kind = static_cast<std::int32_t>(spec.kind);
  values.ratio = spec.ratio;
  values.indexer = spec.indexer ? 1 : 0;
  values.overlap = spec.overlap ? 1 : 0;
  values.compressed_rope = spec.rope == RopeChoice::kCompressed ? 1 : 0;
  return write_struct(info, info->struct_size, "dsv4rt_layer_info", values);
}

// Gives what `make` makes, terminated: see dsv4rt_engine_describe.
template <class Make>
Status write_text(const char* function, char* text, std::size_t capacity, std::size_t* bytes, const Make& make) {
  if (bytes == nullptr) return null_argument(function, "bytes");
  if (text == nullptr && capacity > 0) return null_argument(function, "text");
  DSV4RT_ASSIGN_OR_RETURN(const std::string made, make());
  *bytes = made.size();
  if (text == nullptr) return {};
  if (capacity <= made.size()) {
    return {StatusCode::kInvalidArgument, std::string(function) + ": capacity " + std::to_string(capacity) +
                                              "; needed: " + std::to_string(made.size() + 1)};
  }
  std::memcpy(text, made.c_str(), made.size() + 1);
  return {};
}

Result<std::string> metrics(const Engine& engine, const dsv4rt_metric_label* given, std::size_t count) {
  constexpr char kName[] = "dsv4rt_engine_metrics";
  if (given == nullptr && count > 0) return null_argument(kName, "labels");
  if (count > kMostMetricLabels) {
    return Status{StatusCode::kInvalidArgument, std::string(kName) + ": " + std::to_string(count) +
                                                    " labels; accepted: at most " + std::to_string(kMostMetricLabels)};
  }
  std::vector<MetricLabel> labels;
  for (std::size_t i = 0; i < count; ++i) {
    if (given[i].name == nullptr) return null_argument(kName, "labels[].name");
    if (given[i].value == nullptr) return null_argument(kName, "labels[].value");
    labels.push_back({given[i].name, given[i].value});
  }
  return engine.metrics(labels);
}

Status engine_state(const Engine& engine, dsv4rt_engine_state* state) {
  if (state == nullptr) return null_argument("dsv4rt_engine_get_state", "state");
  DSV4RT_ASSIGN_OR_RETURN(const EngineState known, engine.state());
  dsv4rt_engine_state values{};
  values.max_sequences = known.max_sequences;
  values.live_sequences = known.live_sequences;
  values.step_serial = known.step;
  values.tokens_left = known.tokens_left;
  return write_struct(state, state->struct_size, "dsv4rt_engine_state", values);
}

Status role_state(const Engine& engine, std::int32_t asked, dsv4rt_role_state* state) {
  if (state == nullptr) return null_argument("dsv4rt_engine_role_state", "state");
  DSV4RT_ASSIGN_OR_RETURN(const CacheRole role, read_role("dsv4rt_engine_role_state", asked));
  DSV4RT_ASSIGN_OR_RETURN(const EngineState known, engine.state());
  const auto found =
      std::find_if(known.roles.begin(), known.roles.end(), [&](const RoleState& other) { return other.role == role; });
  dsv4rt_role_state values{};
  if (found != known.roles.end()) {
    values.layers = found->layers;
    values.tokens_per_block = found->tokens_per_block;
    values.total_blocks = found->total_blocks;
    values.free_blocks = found->free_blocks;
    values.used_blocks = found->used_blocks;
    values.cached_blocks = found->cached_blocks;
    values.pinned_blocks = found->pinned_blocks;
    values.reserved_blocks = found->reserved_blocks;
  }
  return write_struct(state, state->struct_size, "dsv4rt_role_state", values);
}

Status sequence_state(const Engine& engine, dsv4rt_sequence sequence, dsv4rt_sequence_state* state) {
  if (state == nullptr) return null_argument("dsv4rt_sequence_get_state", "state");
  DSV4RT_ASSIGN_OR_RETURN(const SequenceState known, engine.sequence_state(id_of(sequence)));
  dsv4rt_sequence_state values{};
  values.length = known.length;
  values.reserve_tokens = known.reserve_tokens;
  values.earliest_truncation = known.earliest_truncation;
  values.slot = known.slot;
  values.saved_tokens = known.saved_tokens;
  values.held_by = known.held_by;
  std::copy(known.blocks.begin(), known.blocks.end(), values.blocks);
  return write_struct(state, state->struct_size, "dsv4rt_sequence_state", values);
}

Status cache_view(const Engine& engine, std::int32_t layer, std::int32_t asked, dsv4rt_cache_view* view) {
  if (view == nullptr) return null_argument("dsv4rt_engine_cache_view", "view");
  DSV4RT_ASSIGN_OR_RETURN(const CacheRole role, read_role("dsv4rt_engine_cache_view", asked));
  DSV4RT_ASSIGN_OR_RETURN(const CacheView known, engine.cache_view(LayerId(layer), role));
  dsv4rt_cache_view values{};
  values.base = known.base;
  values.block_stride_bytes = known.block_stride_bytes;
  values.block_count = known.block_count;
  values.rows_per_block = known.rows_per_block;
  values.data_bytes = known.data_bytes;
  values.scale_bytes = known.scale_bytes;
  values.tokens_per_row = known.tokens_per_row;
  values.scale_offset = known.scale_offset;
  values.format = known.format.data();  // a string literal
  values.block_table = known.block_table;
  values.block_table_columns = known.block_table_columns;
  return write_struct(view, view->struct_size, "dsv4rt_cache_view", values);
}

}  // namespace
}  // namespace dsv4rt::c_api

using dsv4rt::c_api::call;
using dsv4rt::c_api::Use;

dsv4rt_status dsv4rt_engine_config(dsv4rt_engine* engine, dsv4rt_config* config) {
  return call(engine, Use::kFact, [&](dsv4rt_engine& handle) {
    if (config == nullptr) return dsv4rt::c_api::null_argument("dsv4rt_engine_config", "config");
    return dsv4rt::c_api::write_struct(config, config->struct_size, "dsv4rt_config",
                                       dsv4rt::c_api::config_of(*handle.engine));
  });
}

dsv4rt_status dsv4rt_engine_layer_info(dsv4rt_engine* engine, size_t index, dsv4rt_layer_info* info) {
  return call(engine, Use::kFact,
              [&](dsv4rt_engine& handle) { return dsv4rt::c_api::layer_info(*handle.engine, index, info); });
}

dsv4rt_status dsv4rt_engine_describe(dsv4rt_engine* engine, char* text, size_t capacity, size_t* bytes) {
  return call(engine, Use::kQuery, [&](dsv4rt_engine& handle) {
    return dsv4rt::c_api::write_text("dsv4rt_engine_describe", text, capacity, bytes,
                                     [&] { return handle.engine->describe(); });
  });
}

dsv4rt_status dsv4rt_engine_metrics(dsv4rt_engine* engine, const dsv4rt_metric_label* labels, size_t label_count,
                                    char* text, size_t capacity, size_t* bytes) {
  return call(engine, Use::kQuery, [&](dsv4rt_engine& handle) {
    return dsv4rt::c_api::write_text("dsv4rt_engine_metrics", text, capacity, bytes,
                                     [&] { return dsv4rt::c_api::metrics(*handle.engine, labels, label_count); });
  });
}

dsv4rt_status dsv4rt_engine_get_state(dsv4rt_engine* engine, dsv4rt_engine_state* state) {
  return call(engine, Use::kQuery,
              [&](dsv4rt_engine& handle) { return dsv4rt::c_api::engine_state(*handle.engine, state); });
}

dsv4rt_status dsv4rt_engine_role_state(dsv4rt_engine* engine, int32_t role, dsv4rt_role_state* state) {
  return call(engine, Use::kQuery,
              [&](dsv4rt_engine& handle) { return dsv4rt::c_api::role_state(*handle.engine, role, state); });
}

dsv4rt_status dsv4rt_sequence_get_state(dsv4rt_engine* engine, dsv4rt_sequence sequence, dsv4rt_sequence_state* state) {
  return call(engine, Use::kQuery,
              [&](dsv4rt_engine& handle) { return dsv4rt::c_api::sequence_state(*handle.engine, sequence, state); });
}

dsv4rt_status dsv4rt_engine_cache_view(dsv4rt_engine* engine, int32_t layer, int32_t role, dsv4rt_cache_view* view) {
  return call(engine, Use::kQuery,
              [&](dsv4rt_engine& handle) { return dsv4rt::c_api::cache_view(*handle.engine, layer, role, view); });
}
