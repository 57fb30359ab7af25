// The bytes of the cache: one buffer per pool, block table and ring region, and views for layers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attention/attention_layer.h"
#include "backend/backend.h"
#include "cache/cache_layout.h"
#include "cache/memory_plan.h"

namespace dsv4rt {

// One allocation: a pool, a block table or the rings of all slots.
struct CacheRegion {
  std::string name;           // role, part and layer
  std::byte* data = nullptr;  // backend memory; with guard bytes, what lies between them
  std::int64_t bytes = 0;     // guard bytes not counted
};

class CacheMemory {
 public:
  // Bytes before and after a region that is allocated with guard bytes; keeps the backend's alignment.
  static constexpr std::int64_t kGuardBytes = 256;
  enum class GuardBytes : std::uint8_t { kNone, kAround };

  // Allocates what `plan` says; table_strides[i] columns for the block table of pool i.
  // kResourceExhausted naming role, layer and bytes. Guard bytes are no part of the plan.
  static Result<CacheMemory> allocate(Backend& backend, const CacheLayout& layout, const MemoryPlan& plan,
                                      std::span<const std::int32_t> table_strides,
                                      GuardBytes guard_bytes = GuardBytes::kNone);

  // Views of one layer's regions.
  [[nodiscard]] LayerCache layer_cache(const LayerSpec& spec) const;
  // Every pool and every ring, as begin_step and copy_slot take them.
  [[nodiscard]] std::span<const CacheTable> tables() const noexcept { return tables_; }
  [[nodiscard]] std::span<const CacheRings> rings() const noexcept { return rings_; }
  // Every allocation, and those of one pool or ring by its index in the layout.
  [[nodiscard]] std::span<const CacheRegion> regions() const noexcept { return regions_; }
  [[nodiscard]] const CacheRegion& pool_region(int pool) const { return regions_[static_cast<std::size_t>(pool) * 2]; }
  [[nodiscard]] const CacheRegion& ring_region(int ring) const {
    return regions_[tables_.size() * 2 + static_cast<std::size_t>(ring)];
  }

 private:
  [[nodiscard]] PagedRows paged_rows(LayerId layer, CacheRole role) const;
  [[nodiscard]] StateRing state_ring(LayerId layer, CacheRole role) const;

  const CacheLayout* layout_ = nullptr;
  std::vector<Buffer> buffers_;       // owns what the regions and views below point into
  std::vector<CacheRegion> regions_;  // every pool followed by its block table, then every ring
  std::vector<CacheTable> tables_;
  std::vector<CacheRings> rings_;
};

}  // namespace dsv4rt
