// What an engine holds, as data: counts, sequences, views of the cache and its description.
#include <algorithm>
#include <limits>
#include <string>

#include <nlohmann/json.hpp>

#include "base/try.h"
#include "engine/engine_impl.h"
#include "layout/row_format.h"

namespace dsv4rt {
namespace {

using Json = nlohmann::ordered_json;

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

Json config_json(const ModelConfig& config) {
  Json json{{"hidden_size", config.hidden_size},
            {"num_hidden_layers", config.num_hidden_layers},
            {"num_attention_heads", config.num_attention_heads},
            {"head_dim", kHeadDim},
            {"q_lora_rank", config.q_lora_rank},
            {"o_lora_rank", config.o_lora_rank},
            {"o_groups", config.o_groups},
            {"sliding_window", config.sliding_window},
            {"index_n_heads", config.index_n_heads},
            {"index_head_dim", kIndexHeadDim},
            {"index_topk", config.index_topk},
            {"rms_norm_eps", config.rms_norm_eps},
            {"rope_theta", config.rope_theta},
            {"compress_rope_theta", config.compress_rope_theta},
            {"max_position_embeddings", config.max_position_embeddings}};
  if (config.rope_scaling) {
    json["rope_scaling"] = {
        {"factor", config.rope_scaling->factor},
        {"beta_fast", config.rope_scaling->beta_fast},
        {"beta_slow", config.rope_scaling->beta_slow},
        {"original_max_position_embeddings", config.rope_scaling->original_max_position_embeddings}};
  }
  return json;
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
    const CacheFormats& formats = impl_->layout.formats();
    const CacheLimits& limits = impl_->options.limits;
    Json json{{"profile", impl_->options.profile},
              {"backend", impl_->backend->name()},
              {"deterministic", impl_->options.deterministic},
              {"config", config_json(impl_->settings.config)}};
    for (const LayerSpec& spec : impl_->layer_specs) {
      json["layers"].push_back({{"layer", spec.id.value},
                                {"kind", attention_kind_name(spec.kind)},
                                {"ratio", spec.ratio},
                                {"overlap", spec.overlap},
                                {"indexer", spec.indexer},
                                {"rope", spec.rope == RopeChoice::kPlain ? "plain" : "compressed"}});
    }
    json["formats"] = {{"rows", row_format_name(formats.rows)},
                       {"index_keys", index_key_format_name(formats.index_keys)},
                       {"csa_rows_per_block", formats.csa_rows_per_block},
                       {"hca_rows_per_block", formats.hca_rows_per_block},
                       {"draft_budget_tokens", formats.draft_budget_tokens}};
    json["limits"] = {{"max_sequences", limits.max_sequences},
                      {"max_context_tokens", limits.max_context_tokens},
                      {"max_step_tokens", limits.max_step_tokens},
                      {"pool_tokens", limits.pool_tokens},
                      {"boundary_states", limits.boundary_states}};
    json["memory"] = {{"total_bytes", impl_->memory.total_bytes},
                      {"weight_bytes", impl_->memory.weight_bytes},
                      {"cache_bytes", impl_->memory.cache.total_bytes},
                      {"bytes_per_token", impl_->memory.cache.bytes_per_token},
                      {"bytes_per_sequence", impl_->memory.cache.bytes_per_sequence},
                      {"sharing_unit_tokens", impl_->memory.cache.sharing_unit_tokens},
                      {"prefix_unit_tokens", impl_->memory.cache.prefix_unit_tokens}};
    return json.dump();
  });
}

}  // namespace dsv4rt
