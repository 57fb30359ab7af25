#include "tools/lib/engine_inspector.h"

#include <algorithm>
#include <string>
#include <utility>

#include "attention/context_split.h"
#include "base/try.h"
#include "engine/engine_impl.h"

namespace dsv4rt {
namespace {

Status no_such_role(LayerId layer, CacheRole role) {
  return {StatusCode::kNotFound,
          "layer " + std::to_string(layer.value) + " has no " + std::string(cache_role_name(role))};
}

// Data and scale bytes of one row.
void digest_row(const BlockShape& shape, const std::byte* block, std::int64_t row, Sha256& digest) {
  digest.update({block + shape.data_offset(row), static_cast<std::size_t>(shape.data_bytes)});
  digest.update({block + shape.scale_offset(row), static_cast<std::size_t>(shape.scale_bytes)});
}

}  // namespace

Backend& EngineInspector::backend() const noexcept {
  return *impl_.backend;
}
const bf16* EngineInspector::last_output() const noexcept {
  return impl_.layer_output.as<bf16>();
}
RowFormat EngineInspector::row_format() const noexcept {
  return impl_.settings.row_format;
}
IndexKeyFormat EngineInspector::index_format() const noexcept {
  return impl_.settings.index_format;
}
bool EngineInspector::quantized_linears() const noexcept {
  return impl_.weights->quantized_linears;
}
bool EngineInspector::deterministic() const noexcept {
  return is_batch_invariant(linear_precision());
}
LinearPrecision EngineInspector::linear_precision() const noexcept {
  return impl_.backend->linear_precision();
}
const LayerSpec& EngineInspector::layer_spec(LayerId layer) const {
  return impl_.schedule.layers()[impl_.local_layer(layer).value()];
}
std::int64_t EngineInspector::layer_weight_bytes(LayerId layer) const {
  return impl_.layers[impl_.local_layer(layer).value()].weights().bytes();
}

StageObserver* EngineInspector::observe_stages(StageObserver* observer) noexcept {
  return std::exchange(impl_.stage_observer, observer);
}

const CacheMemory& EngineInspector::cache_memory() const noexcept {
  return impl_.cache;
}
const KVCacheManager& EngineInspector::cache_manager() const noexcept {
  return *impl_.manager;
}
const CacheLayout& EngineInspector::cache_layout() const noexcept {
  return impl_.layout;
}
Result<std::vector<BlockId>> EngineInspector::blocks(SequenceId sequence, int pool) const {
  return impl_.manager->blocks(sequence, pool);
}
LinearTotals EngineInspector::layer_linears(LayerId layer) const {
  LinearTotals totals;
  for (const PackedLinear* linear : impl_.layers[impl_.local_layer(layer).value()].weights().linears()) {
    const std::int64_t values = linear->in_features() * linear->out_features();
    const bool wide = linear->bytes() > values * 3 / 2;  // scales take a few per cent
    (wide ? totals.wider_values : totals.byte_values) += values;
  }
  return totals;
}

Result<std::vector<std::byte>> EngineInspector::block_bytes(int pool, BlockId block) {
  const CacheTable& table = impl_.cache.tables()[static_cast<std::size_t>(pool)];
  std::vector<std::byte> bytes(static_cast<std::size_t>(table.block_bytes));
  DSV4RT_RETURN_IF_ERROR(
      impl_.backend->download(bytes.data(), table.blocks + block.value * table.block_bytes, bytes.size()));
  return bytes;
}

Result<std::vector<std::byte>> EngineInspector::ring_bytes(int slot_spec, SequenceId sequence) {
  DSV4RT_ASSIGN_OR_RETURN(const StateSlotId slot, impl_.manager->slot(sequence));
  const CacheRings& rings = impl_.cache.rings()[static_cast<std::size_t>(slot_spec)];
  std::vector<std::byte> bytes(static_cast<std::size_t>(rings.slot_bytes));
  DSV4RT_RETURN_IF_ERROR(
      impl_.backend->download(bytes.data(), rings.base + slot.value * rings.slot_bytes, bytes.size()));
  return bytes;
}

Result<std::vector<float>> EngineInspector::paged_values(LayerId layer, CacheRole role, SequenceId sequence) {
  DSV4RT_ASSIGN_OR_RETURN(const std::size_t local, impl_.local_layer(layer));
  const int pool = impl_.layout.pool_index(LayerId(static_cast<std::int32_t>(local)), role);
  if (pool < 0) return no_such_role(layer, role);
  const PoolSpec& spec = impl_.layout.pools()[static_cast<std::size_t>(pool)];
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t length, impl_.manager->length(sequence));
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<BlockId> blocks, impl_.manager->blocks(sequence, pool));

  const bool is_key = role == CacheRole::kIndexK;
  const std::int64_t dim = is_key ? kIndexHeadDim : kHeadDim;
  const std::int64_t rows = length / spec.ratio;
  std::vector<float> values(static_cast<std::size_t>(rows * dim));
  std::vector<std::byte> bytes;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t in_block = row % spec.shape.rows;
    if (in_block == 0) {
      DSV4RT_ASSIGN_OR_RETURN(bytes, block_bytes(pool, blocks[static_cast<std::size_t>(row / spec.shape.rows)]));
    }
    float* target = values.data() + row * dim;
    if (is_key) {
      decode_row(impl_.settings.index_format, spec.shape, bytes.data(), in_block, target);
    } else {
      decode_row(impl_.settings.row_format, spec.shape, bytes.data(), in_block, target);
    }
  }
  return values;
}

Result<std::vector<float>> EngineInspector::window_values(LayerId layer, SequenceId sequence) {
  DSV4RT_ASSIGN_OR_RETURN(const std::size_t local, impl_.local_layer(layer));
  const int index = impl_.layout.slot_index(LayerId(static_cast<std::int32_t>(local)), CacheRole::kSwaKv);
  const SlotSpec& spec = impl_.layout.slots()[static_cast<std::size_t>(index)];
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t length, impl_.manager->length(sequence));
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, ring_bytes(index, sequence));

  const std::int64_t count = std::min(length, impl_.settings.config.sliding_window);
  std::vector<float> values(static_cast<std::size_t>(count * kHeadDim));
  for (std::int64_t i = 0; i < count; ++i) {
    decode_row(impl_.settings.row_format, spec.shape, bytes.data(), (length - count + i) % spec.ring_rows,
               values.data() + i * kHeadDim);
  }
  return values;
}

// With context parallelism ranks select for their own rows: every rank asks, and gets those of all.
Status EngineInspector::share_selection(std::int32_t tokens) {
  const AttentionSettings& settings = impl_.settings;
  const DealtStep& dealt = impl_.step.dealt;
  if (settings.context == nullptr || dealt.alone || tokens < settings.context_min_tokens) return {};
  const ContextSplit split(tokens, settings.context->size(), std::max(dealt.hand_over_to, 0));
  for (std::int32_t index = 0; index < split.pieces(); ++index) {
    const RowRange piece = split.piece(index);
    if (piece.count == 0) continue;
    const std::int64_t top_k = settings.config.index_topk;
    DSV4RT_RETURN_IF_ERROR(settings.context->broadcast(impl_.workspace.topk_indices + piece.first * top_k,
                                                       piece.count * top_k * std::int64_t{sizeof(std::int32_t)},
                                                       split.owner(index), settings.stream));
    DSV4RT_RETURN_IF_ERROR(settings.context->broadcast(impl_.workspace.topk_count + piece.first,
                                                       piece.count * std::int64_t{sizeof(std::int32_t)},
                                                       split.owner(index), settings.stream));
  }
  return {};
}

Result<TopkRows> EngineInspector::last_selection(LayerId layer, std::int32_t tokens) {
  DSV4RT_ASSIGN_OR_RETURN(const std::size_t local, impl_.local_layer(layer));
  if (!impl_.schedule.layers()[local].indexer) return no_such_role(layer, CacheRole::kIndexK);
  TopkRows selection;
  selection.top_k = static_cast<std::int32_t>(impl_.settings.config.index_topk);
  const auto count = static_cast<std::size_t>(tokens);
  selection.rows.resize(count * static_cast<std::size_t>(selection.top_k));
  selection.counts.resize(count);
  DSV4RT_RETURN_IF_ERROR(share_selection(tokens));
  DSV4RT_RETURN_IF_ERROR(impl_.backend->download(selection.rows.data(), impl_.workspace.topk_indices,
                                                 selection.rows.size() * sizeof(std::int32_t)));
  DSV4RT_RETURN_IF_ERROR(impl_.backend->download(selection.counts.data(), impl_.workspace.topk_count,
                                                 selection.counts.size() * sizeof(std::int32_t)));
  return selection;
}

Status EngineInspector::digest_pool(int pool, SequenceId sequence, std::int64_t length, Sha256& digest) {
  const PoolSpec& spec = impl_.layout.pools()[static_cast<std::size_t>(pool)];
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<BlockId> blocks, impl_.manager->blocks(sequence, pool));
  const std::int64_t rows = length / spec.ratio;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    DSV4RT_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, block_bytes(pool, blocks[b]));
    const std::int64_t first = static_cast<std::int64_t>(b) * spec.shape.rows;
    const std::int64_t in_block = std::min<std::int64_t>(spec.shape.rows, rows - first);
    for (std::int64_t row = 0; row < in_block; ++row) digest_row(spec.shape, bytes.data(), row, digest);
  }
  return {};
}

Status EngineInspector::digest_ring(int slot_spec, SequenceId sequence, std::int64_t length, Sha256& digest) {
  const SlotSpec& spec = impl_.layout.slots()[static_cast<std::size_t>(slot_spec)];
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, ring_bytes(slot_spec, sequence));
  for (std::int64_t position = first_needed_position(spec, length); position < length; ++position) {
    digest_row(spec.shape, bytes.data(), position % spec.ring_rows, digest);
  }
  return {};
}

Status EngineInspector::digest_cache(LayerId layer, SequenceId sequence, Sha256& digest) {
  DSV4RT_RETURN_IF_ERROR(impl_.local_layer(layer).status());
  for (const CacheRole role : roles(layer)) DSV4RT_RETURN_IF_ERROR(digest_role(layer, role, sequence, digest));
  return {};
}

Status EngineInspector::digest_role(LayerId layer, CacheRole role, SequenceId sequence, Sha256& digest) {
  const LayerId local(static_cast<std::int32_t>(impl_.local_layer(layer).value()));
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t length, impl_.manager->length(sequence));
  const int pool = impl_.layout.pool_index(local, role);
  const int ring = impl_.layout.slot_index(local, role);
  if (pool < 0 && ring < 0) return no_such_role(layer, role);
  return pool >= 0 ? digest_pool(pool, sequence, length, digest) : digest_ring(ring, sequence, length, digest);
}

std::vector<CacheRole> EngineInspector::roles(LayerId layer) const {
  const LayerId local(static_cast<std::int32_t>(impl_.local_layer(layer).value()));
  std::vector<CacheRole> present;
  for (int number = 0; number < kCacheRoleCount; ++number) {
    const auto role = static_cast<CacheRole>(number);
    if (impl_.layout.pool_index(local, role) >= 0 || impl_.layout.slot_index(local, role) >= 0) present.push_back(role);
  }
  return present;
}

}  // namespace dsv4rt
