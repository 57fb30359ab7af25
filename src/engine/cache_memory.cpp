#include "engine/cache_memory.h"

#include <string>

#include "base/check.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

std::string region_name(CacheRole role, LayerId layer, const char* part) {
  return std::string(cache_role_name(role)) + " " + part + " of layer " + std::to_string(layer.value);
}

}  // namespace

Result<CacheMemory> CacheMemory::allocate(Backend& backend, const CacheLayout& layout, const MemoryPlan& plan,
                                          std::span<const std::int32_t> table_strides, GuardBytes guard_bytes) {
  CacheMemory memory;
  memory.layout_ = &layout;
  const std::int64_t margin = guard_bytes == GuardBytes::kAround ? kGuardBytes : 0;
  const auto take = [&](std::int64_t bytes, const std::string& purpose) -> Result<std::byte*> {
    DSV4RT_ASSIGN_OR_RETURN(Buffer buffer, backend.allocate(static_cast<std::size_t>(bytes + 2 * margin), purpose));
    memory.buffers_.push_back(std::move(buffer));
    memory.regions_.push_back({.name = purpose, .data = memory.buffers_.back().data() + margin, .bytes = bytes});
    return memory.regions_.back().data;
  };
  const std::int64_t sequences = plan.limits.max_sequences;
  for (std::size_t i = 0; i < layout.pools().size(); ++i) {
    const PoolSpec& pool = layout.pools()[i];
    CacheTable table;
    table.stride = table_strides[i];
    table.block_bytes = pool.shape.block_bytes;
    DSV4RT_ASSIGN_OR_RETURN(
        table.blocks, take(plan.pool_blocks[i] * pool.shape.block_bytes, region_name(pool.role, pool.layer, "blocks")));
    DSV4RT_ASSIGN_OR_RETURN(std::byte * ids,
                            take(sequences * table.stride * static_cast<std::int64_t>(sizeof(std::int32_t)),
                                 region_name(pool.role, pool.layer, "block table")));
    table.block_table = reinterpret_cast<std::int32_t*>(ids);
    memory.tables_.push_back(table);
  }
  for (const SlotSpec& slot : layout.slots()) {
    CacheRings rings;
    rings.slot_bytes = slot.slot_bytes;
    DSV4RT_ASSIGN_OR_RETURN(rings.base, take(sequences * slot.slot_bytes, region_name(slot.role, slot.layer, "rings")));
    memory.rings_.push_back(rings);
  }
  return memory;
}

LayerCache CacheMemory::layer_cache(const LayerSpec& spec) const {
  LayerCache cache;
  const int window = layout_->slot_index(spec.id, CacheRole::kSwaKv);
  DSV4RT_CHECK(window >= 0);
  const auto& rings = rings_[static_cast<std::size_t>(window)];
  cache.window = {.base = rings.base,
                  .slot_bytes = rings.slot_bytes,
                  .shape = layout_->slots()[static_cast<std::size_t>(window)].shape,
                  .format = layout_->formats().rows};
  if (spec.ratio == 0) return cache;
  const CompressorRoles roles = compressor_roles(spec);
  cache.rows = paged_rows(spec.id, roles.rows);
  cache.state = state_ring(spec.id, roles.state);
  if (!spec.indexer) return cache;
  cache.index_keys = paged_rows(spec.id, CacheRole::kIndexK);
  cache.index_state = state_ring(spec.id, CacheRole::kIndexState);
  return cache;
}

PagedRows CacheMemory::paged_rows(LayerId layer, CacheRole role) const {
  const int index = layout_->pool_index(layer, role);
  DSV4RT_CHECK(index >= 0);
  const CacheTable& table = tables_[static_cast<std::size_t>(index)];
  return {.blocks = table.blocks,
          .shape = layout_->pools()[static_cast<std::size_t>(index)].shape,
          .block_table = table.block_table,
          .table_stride = table.stride};
}

StateRing CacheMemory::state_ring(LayerId layer, CacheRole role) const {
  const int index = layout_->slot_index(layer, role);
  DSV4RT_CHECK(index >= 0);
  const CacheRings& rings = rings_[static_cast<std::size_t>(index)];
  return {.base = rings.base,
          .slot_bytes = rings.slot_bytes,
          .ring_rows = layout_->slots()[static_cast<std::size_t>(index)].ring_rows};
}

}  // namespace dsv4rt
