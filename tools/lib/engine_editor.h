// Writes what an engine has cached: contexts that nobody computed, for tests and measurements at lengths
// whose prefill would take too long.
//
//   auto step = engine.prepare({&entry, 1});
//   EngineEditor editor(engine);
//   editor.skip_layers(*step);
//   engine.commit(*step);
//   editor.write_block(layer, CacheRole::kCsaKv, sequence, 0, bytes);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/ops.h"
#include "cache/cache_layout.h"
#include "tools/lib/engine_inspector.h"
#include "tools/lib/step_shape.h"

namespace dsv4rt {

class EngineEditor : public EngineInspector {
 public:
  using EngineInspector::EngineInspector;

  // Counts every layer of the outstanding step as run: its tokens own blocks and a place in the rings,
  // which hold what they held before.
  Status skip_layers(const Step& step);

  // Appends `tokens` to every sequence as by steps of which no layer ran.
  Status skip_tokens(std::span<const SequenceId> sequences, std::int64_t tokens);

  // Gives new sequences, as many as the shape has, their contexts in that way.
  Status skip_contexts(std::span<const SequenceId> sequences, const StepShape& shape);

  // Random valid rows in every pool and ring, the same for the same seed whatever the backend.
  Status fill_caches(std::uint64_t seed);

  // Regions of a layer; null when it does not have the role.
  [[nodiscard]] const PoolSpec* pool(LayerId layer, CacheRole role) const;
  [[nodiscard]] const SlotSpec* ring(LayerId layer, CacheRole role) const;

  // Block `index` of the sequence in a paged role: pool()->shape.block_bytes bytes. A block that forks
  // share is read and written for all of them. kNotFound for a role or block that does not exist,
  // kInvalidArgument for another number of bytes.
  Result<std::vector<std::byte>> read_block(LayerId layer, CacheRole role, SequenceId sequence, std::int64_t index);
  Status write_block(LayerId layer, CacheRole role, SequenceId sequence, std::int64_t index,
                     std::span<const std::byte> bytes);
  // The sequence's ring: ring()->slot_bytes bytes.
  Result<std::vector<std::byte>> read_ring(LayerId layer, CacheRole role, SequenceId sequence);
  Status write_ring(LayerId layer, CacheRole role, SequenceId sequence, std::span<const std::byte> bytes);

  // Replaces an entry of the backend's block table only: what a corrupted table does to kernels.
  Status write_table_entry(LayerId layer, CacheRole role, SequenceId sequence, std::int64_t index, std::int32_t block);

  // Engine::forward_layer through other operations, such as ones that record or replace; x and out are
  // backend memory. backend_ops() are the engine's own.
  Status forward_layer_with(Ops& ops, const Step& step, LayerId layer, const Bf16Bits* x, Bf16Bits* out);
  [[nodiscard]] Ops& backend_ops();

 private:
  // Where block `index` lies in backend memory.
  Result<std::byte*> block_address(LayerId layer, CacheRole role, SequenceId sequence, std::int64_t index);
  Result<int> pool_number(LayerId layer, CacheRole role) const;
  Result<int> ring_number(LayerId layer, CacheRole role) const;
};

}  // namespace dsv4rt
