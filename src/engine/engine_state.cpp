// What an engine holds, as data: counts, sequences, views of the cache and its description.
#include <algorithm>
#include <limits>
#include <string>

#include "base/json_text_writer.h"
#include "base/try.h"
#include "engine/engine_impl.h"
#include "layout/row_format.h"

namespace dsv4rt {
namespace {

// Pool of each paged role, of the first layer that has it; -1 where none does.
std::array<int, kCacheRoleCount> first_pools(const CacheLayout& layout) {
  std::array<int, kCacheRoleCount> pools{};
  pools.fill(-1);
  for (std::size_t pool = layout.pools().size(); pool-- > 0;) {
    pools[static_cast<std::size_t>(layout.pools()[pool].role)] = static_cast<int>(pool);
  }
  return pools;
}

RoleState role_state(const CacheLayout& layout, const KVCacheManager& manager, int pool) {
  const PoolSpec& spec = layout.pools()[static_cast<std::size_t>(pool)];
  const PoolUsage usage = manager.usage(pool);
  const auto of_role = [&](const PoolSpec& other) { return other.role == spec.role; };
  return {.role = spec.role,
          .layers = static_cast<std::int32_t>(std::count_if(layout.pools().begin(), layout.pools().end(), of_role)),
          .tokens_per_block = spec.shape.rows * spec.ratio,
          .total_blocks = usage.total,
          .free_blocks = usage.free,
          .used_blocks = usage.live,
          .cached_blocks = usage.cached,
          .pinned_blocks = usage.pinned,
          .reserved_blocks = usage.reserved};
}

void write_config(const ModelConfig& config, JsonTextWriter& json) {
  json.open_object("config");
  json.add("hidden_size", config.hidden_size);
  json.add("num_hidden_layers", config.num_hidden_layers);
  json.add("num_attention_heads", config.num_attention_heads);
  json.add("head_dim", kHeadDim);
  json.add("q_lora_rank", config.q_lora_rank);
  json.add("o_lora_rank", config.o_lora_rank);
  json.add("o_groups", config.o_groups);
  json.add("sliding_window", config.sliding_window);
  json.add("index_n_heads", config.index_n_heads);
  json.add("index_head_dim", kIndexHeadDim);
  json.add("index_topk", config.index_topk);
  json.add("rms_norm_eps", config.rms_norm_eps);
  json.add("rope_theta", config.rope_theta);
  json.add("compress_rope_theta", config.compress_rope_theta);
  json.add("max_position_embeddings", config.max_position_embeddings);
  if (const auto& scaling = config.rope_scaling) {
    json.open_object("rope_scaling");
    json.add("factor", scaling->factor);
    json.add("beta_fast", scaling->beta_fast);
    json.add("beta_slow", scaling->beta_slow);
    json.add("original_max_position_embeddings", scaling->original_max_position_embeddings);
    json.close_object();
  }
  json.close_object();
}

void write_layers(std::span<const LayerSpec> layers, JsonTextWriter& json) {
  json.open_array("layers");
  for (const LayerSpec& spec : layers) {
    json.open_object();
    json.add("layer", spec.id.value);
    json.add("kind", attention_kind_name(spec.kind));
    json.add("ratio", spec.ratio);
    json.add("overlap", spec.overlap);
    json.add("indexer", spec.indexer);
    json.add("rope", spec.rope == RopeChoice::kPlain ? "plain" : "compressed");
    json.close_object();
  }
  json.close_array();
}

void write_formats(const CacheFormats& formats, JsonTextWriter& json) {
  json.open_object("formats");
  json.add("rows", row_format_name(formats.rows));
  json.add("index_keys", index_key_format_name(formats.index_keys));
  json.add("csa_rows_per_block", formats.csa_rows_per_block);
  json.add("hca_rows_per_block", formats.hca_rows_per_block);
  json.add("draft_budget_tokens", formats.draft_budget_tokens);
  json.close_object();
}

void write_limits(const CacheLimits& limits, JsonTextWriter& json) {
  json.open_object("limits");
  json.add("max_sequences", limits.max_sequences);
  json.add("max_context_tokens", limits.max_context_tokens);
  json.add("max_step_tokens", limits.max_step_tokens);
  json.add("pool_tokens", limits.pool_tokens);
  json.add("boundary_states", limits.boundary_states);
  json.close_object();
}

void write_memory(const EngineMemory& memory, JsonTextWriter& json) {
  json.open_object("memory");
  json.add("total_bytes", memory.total_bytes);
  json.add("weight_bytes", memory.weight_bytes);
  json.add("cache_bytes", memory.cache.total_bytes);
  json.add("bytes_per_token", memory.cache.bytes_per_token);
  json.add("bytes_per_sequence", memory.cache.bytes_per_sequence);
  json.add("sharing_unit_tokens", memory.cache.sharing_unit_tokens);
  json.add("prefix_unit_tokens", memory.cache.prefix_unit_tokens);
  json.close_object();
}

}  // namespace

Result<EngineState> Engine::state() const {
  return impl_->call("state", Impl::Use::kRead, [&]() -> Result<EngineState> {
    const KVCacheManager& manager = *impl_->manager;
    EngineState state;
    state.max_sequences = impl_->options.limits.max_sequences;
    state.live_sequences = manager.live_sequences();
    state.step = impl_->step.plan.serial;
    state.tokens_left = std::numeric_limits<std::int64_t>::max();
    for (const int pool : first_pools(impl_->layout)) {
      if (pool < 0) continue;
      const RoleState role = role_state(impl_->layout, manager, pool);
      const std::int64_t unreserved = role.free_blocks + role.cached_blocks - role.reserved_blocks;
      state.tokens_left = std::min(state.tokens_left, unreserved * role.tokens_per_block);
      state.roles.push_back(role);
    }
    return state;
  });
}

Result<SequenceState> Engine::sequence_state(SequenceId sequence) const {
  return impl_->call("sequence_state", Impl::Use::kRead, [&]() -> Result<SequenceState> {
    DSV4RT_ASSIGN_OR_RETURN(const SequenceUsage usage, impl_->manager->sequence_usage(sequence));
    SequenceState state{.length = usage.length,
                        .reserve_tokens = usage.reserve_tokens,
                        .earliest_truncation = usage.earliest_truncation,
                        .slot = usage.slot.value};
    if (const Impl::SavedSequence* saved = impl_->saved_sequence(sequence)) state.saved_tokens = saved->length;
    if (const Impl::HeldSequence* held = impl_->held_sequence(sequence)) state.held_by = held->rank;
    const auto pools = first_pools(impl_->layout);
    for (std::size_t role = 0; role < pools.size(); ++role) {
      if (pools[role] >= 0) state.blocks[role] = impl_->manager->blocks_of_length(usage.length, pools[role]);
    }
    return state;
  });
}

Result<std::optional<BlockShortage>> Engine::can_step(std::span<const StepEntry> entries,
                                                      const StepOptions& asked) const {
  return impl_->call("can_step", Impl::Use::kRead, [&]() -> Result<std::optional<BlockShortage>> {
    DSV4RT_RETURN_IF_ERROR(impl_->check_hand_over("can_step", entries, asked));
    DSV4RT_ASSIGN_OR_RETURN(const std::optional<PoolShortage> found, impl_->manager->step_shortage(entries, asked));
    if (!found) return std::optional<BlockShortage>();
    const PoolSpec& pool = impl_->layout.pools()[static_cast<std::size_t>(found->pool)];
    return std::optional(BlockShortage{.role = pool.role,
                                       .layer = impl_->model_layer(pool.layer),
                                       .missing_blocks = found->missing_blocks,
                                       .missing_bytes = found->missing_blocks * pool.shape.block_bytes,
                                       .entry = found->entry});
  });
}

std::span<const LayerSpec> Engine::layer_specs() const noexcept {
  return impl_->layer_specs;
}

const CacheFormats& Engine::formats() const noexcept {
  return impl_->layout.formats();
}

Result<CacheView> Engine::cache_view(LayerId layer, CacheRole role) const {
  return impl_->call("cache_view", Impl::Use::kRead, [&]() -> Result<CacheView> {
    if (static_cast<int>(role) >= kCacheRoleCount) {
      return Status{StatusCode::kInvalidArgument, "cache_view: role " + std::to_string(static_cast<int>(role)) +
                                                      "; accepted: 0 to " + std::to_string(kCacheRoleCount - 1)};
    }
    DSV4RT_ASSIGN_OR_RETURN(const std::size_t local, impl_->local_layer(layer));
    const LayerId id = impl_->schedule.layers()[local].id;
    CacheView view{.role = role, .layer = layer};
    const int pool = impl_->layout.pool_index(id, role);
    const int ring = impl_->layout.slot_index(id, role);
    if (pool < 0 && ring < 0) {
      return Status{StatusCode::kNotFound, "cache_view: layer " + std::to_string(layer.value) + " has no " +
                                               std::string(cache_role_name(role))};
    }
    const auto set_shape = [&](const BlockShape& shape) {
      view.rows_per_block = shape.rows;
      view.data_bytes = shape.data_bytes;
      view.scale_bytes = shape.scale_bytes;
      view.scale_offset = shape.scale_bytes > 0 ? shape.scale_offset(0) : 0;
    };
    const CacheFormats& formats = impl_->layout.formats();
    const bool keys = role == CacheRole::kIndexK;
    view.format = keys ? index_key_format_name(formats.index_keys) : row_format_name(formats.rows);
    if (pool >= 0) {
      const PoolSpec& spec = impl_->layout.pools()[static_cast<std::size_t>(pool)];
      const CacheTable& table = impl_->cache.tables()[static_cast<std::size_t>(pool)];
      view.paged = true;
      view.base = table.blocks;
      view.block_stride_bytes = spec.shape.block_bytes;
      view.block_count = impl_->memory.cache.pool_blocks[static_cast<std::size_t>(pool)];
      view.tokens_per_row = spec.ratio;
      view.block_table = table.block_table;
      view.block_table_columns = table.stride;
      set_shape(spec.shape);
      return view;
    }
    const SlotSpec& spec = impl_->layout.slots()[static_cast<std::size_t>(ring)];
    view.base = impl_->cache.rings()[static_cast<std::size_t>(ring)].base;
    view.block_stride_bytes = spec.slot_bytes;
    view.block_count = impl_->options.limits.max_sequences;
    if (role != CacheRole::kSwaKv) view.format = "f32_state";
    set_shape(spec.shape);
    return view;
  });
}

Result<std::string> Engine::describe() const {
  return impl_->call("describe", Impl::Use::kRead, [&]() -> Result<std::string> {
    JsonTextWriter json;
    json.open_object();
    json.add("profile", impl_->options.profile);
    json.add("backend", impl_->backend->name());
    json.add("deterministic", is_batch_invariant(impl_->backend->linear_precision()));
    json.add("linear_precision", linear_precision_name(impl_->backend->linear_precision()));
    write_config(impl_->settings.config, json);
    write_layers(impl_->layer_specs, json);
    write_formats(impl_->layout.formats(), json);
    write_limits(impl_->options.limits, json);
    write_memory(impl_->memory, json);
    json.close_object();
    return json.text();
  });
}

}  // namespace dsv4rt
