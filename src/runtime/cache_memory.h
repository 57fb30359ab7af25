// The bytes of the cache: one buffer per pool, block table and ring region, and views for layers.
#pragma once

#include <span>
#include <vector>

#include "attention/attention_layer.h"
#include "backend/backend.h"
#include "cache/cache_layout.h"
#include "cache/memory_plan.h"

namespace dsv4rt {

class CacheMemory {
 public:
  // Allocates what `plan` says; table_strides[i] columns for the block table of pool i.
  // kResourceExhausted naming role, layer and bytes.
  static Result<CacheMemory> allocate(Backend& backend, const CacheLayout& layout, const MemoryPlan& plan,
                                      std::span<const std::int32_t> table_strides);

  // Views of one layer's regions.
  [[nodiscard]] LayerCache layer_cache(const LayerSpec& spec) const;
  // For begin_step and copy_slot: every pool and every ring.
  [[nodiscard]] std::span<const CacheTable> tables() const noexcept { return tables_; }
  [[nodiscard]] std::span<const CacheRings> rings() const noexcept { return rings_; }
  // Bytes in pools, rings and block tables.
  [[nodiscard]] std::int64_t bytes() const noexcept;

 private:
  [[nodiscard]] PagedRows paged_rows(LayerId layer, CacheRole role) const;
  [[nodiscard]] StateRing state_ring(LayerId layer, CacheRole role) const;

  const CacheLayout* layout_ = nullptr;
  std::vector<Buffer> buffers_;  // owns what the views below point into
  std::vector<CacheTable> tables_;
  std::vector<CacheRings> rings_;
};

}  // namespace dsv4rt
