// Boundary states of an engine: their memory, and what the backend does when sequences begin from them or leave them.
//
// The cache manager decides which state is whose (cache/prefix_cache.h); this class moves bytes, in stream order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention_layer.h"
#include "backend/backend.h"
#include "backend/boundary_state.h"
#include "cache/kv_cache_manager.h"
#include "engine/cache_memory.h"

namespace dsv4rt {

class BoundaryMemory {
 public:
  BoundaryMemory() = default;  // no prefix cache
  // Takes what MemoryPlan says of boundary states. All arguments outlive the object.
  static Result<BoundaryMemory> allocate(Backend& backend, const CacheLayout& layout, const CacheMemory& memory,
                                         const MemoryPlan& plan);

  // A sequence continues at a boundary: its rings get the rows of the state.
  Status restore_rings(Backend& backend, const BoundaryCopyPlan& restore);
  // The device's block-table rows of a sequence whose blocks no step has announced.
  Status write_table_row(Backend& backend, const CacheMemory& memory, const KVCacheManager& manager, StateSlotId slot);
  // States out of rings that serve them.
  Status take(Backend& backend, std::span<const BoundaryCopyPlan> copies);
  // Before a step's first layer: what its boundaries need of the rings as they are. `step` points to host memory.
  Status begin_captures(Backend& backend, std::span<const PlannedCapture> captures, const StepView& step);
  // What a layer of the step must keep; no captures: nothing.
  [[nodiscard]] BoundaryKeep keep(const CacheLayout& layout, const LayerSpec& layer) const;
  void end_captures() noexcept { captures_.clear(); }

 private:
  [[nodiscard]] BoundaryStates states() const noexcept {
    return {.states = states_.data(), .state_bytes = state_bytes_};
  }

  Buffer states_;
  Buffer table_row_;  // int32, block ids on their way into the tables
  std::int64_t state_bytes_ = 0;
  std::vector<BoundaryRows> rows_;         // in the order of CacheLayout::boundary()
  std::vector<std::int32_t> ids_;          // host copy of table_row_
  std::vector<std::int32_t> columns_;      // [pools]
  std::vector<BoundaryCopy> copies_;       // scratch
  std::vector<BoundaryCapture> captures_;  // boundaries inside the outstanding step
};

}  // namespace dsv4rt
