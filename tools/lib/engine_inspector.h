// Reads what an engine has cached, for checks against recorded values and for digests.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/sha256.h"
#include "cache/cache_layout.h"
#include "cache/kv_cache_manager.h"
#include "dsv4rt/engine.h"
#include "engine/cache_memory.h"

namespace dsv4rt {

// Compressed rows that each token of a step attended to in one layer.
struct TopkRows {
  std::int32_t top_k = 0;
  std::vector<std::int32_t> rows;    // [tokens, top_k], ascending, -1 after the count
  std::vector<std::int32_t> counts;  // [tokens]
};

// Values of a layer's matrices, by how they are held.
struct LinearTotals {
  std::int64_t byte_values = 0;   // one byte each or less
  std::int64_t wider_values = 0;  // more
};

class EngineInspector {
 public:
  explicit EngineInspector(Engine& engine) : engine_(engine), impl_(*engine.impl_) {}

  [[nodiscard]] Backend& backend() const noexcept;
  // Engine::step's output of the layer that ran last: backend memory, [max_step_tokens, hidden_size].
  [[nodiscard]] const bf16* last_output() const noexcept;
  [[nodiscard]] RowFormat row_format() const noexcept;
  [[nodiscard]] IndexKeyFormat index_format() const noexcept;
  // Whether any linear rounds its input or weights to fewer bits than BF16.
  [[nodiscard]] bool quantized_linears() const noexcept;
  // Whether equal tokens give equal bytes in steps of any shape.
  [[nodiscard]] bool deterministic() const noexcept;
  // How quantized weights are multiplied: EngineOptions::linear_precision where the backend has it, elsewhere exact.
  [[nodiscard]] LinearPrecision linear_precision() const noexcept;
  // Precondition: the layer is loaded.
  [[nodiscard]] const LayerSpec& layer_spec(LayerId layer) const;
  // Size of the layer's weights as the backend has packed them.
  [[nodiscard]] std::int64_t layer_weight_bytes(LayerId layer) const;
  [[nodiscard]] LinearTotals layer_linears(LayerId layer) const;

  // De-quantized values of the sequence's rows in a paged role: [rows, 512 or 128], oldest first.
  // kNotFound when the layer has no such role.
  Result<std::vector<float>> paged_values(LayerId layer, CacheRole role, SequenceId sequence);
  // De-quantized window rows of the last min(length, window) positions, oldest first: [n, 512].
  Result<std::vector<float>> window_values(LayerId layer, SequenceId sequence);
  // The cache's regions in backend memory; pools and rings are numbered by layer, then role.
  [[nodiscard]] const CacheMemory& cache_memory() const noexcept;
  // Who owns which block, and where.
  [[nodiscard]] const KVCacheManager& cache_manager() const noexcept;
  [[nodiscard]] const CacheLayout& cache_layout() const noexcept;
  // The sequence's blocks in one pool, in row order.
  Result<std::vector<BlockId>> blocks(SequenceId sequence, int pool) const;
  // Selection of the layer that ran last in a step (the workspace is shared by all layers).
  Result<TopkRows> last_selection(LayerId layer, std::int32_t tokens);

  // Tells `observer` (null: nobody) of the stages of eagerly run layers from now on; returns who was told.
  StageObserver* observe_stages(StageObserver* observer) noexcept;

  // Feeds everything the sequence's future depends on in one layer into `digest`: bytes of every
  // compressed row, window row and state row up to its length, in logical order. Two caches with the
  // same digest behave the same; block ids, slots and bytes of dead rows do not enter.
  Status digest_cache(LayerId layer, SequenceId sequence, Sha256& digest);
  // The same of one role, and the roles that a layer has. Precondition: the layer is loaded.
  Status digest_role(LayerId layer, CacheRole role, SequenceId sequence, Sha256& digest);
  [[nodiscard]] std::vector<CacheRole> roles(LayerId layer) const;

 protected:
  Result<std::vector<std::byte>> block_bytes(int pool, BlockId block);
  Result<std::vector<std::byte>> ring_bytes(int slot_spec, SequenceId sequence);

  Engine& engine_;
  Engine::Impl& impl_;

 private:
  Status share_selection(std::int32_t tokens);
  Status digest_pool(int pool, SequenceId sequence, std::int64_t length, Sha256& digest);
  Status digest_ring(int slot_spec, SequenceId sequence, std::int64_t length, Sha256& digest);
};

}  // namespace dsv4rt
