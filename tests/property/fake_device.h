// What a backend would hold for a cache: bytes, block tables and rings, driven by step metadata alone.
//
// A token's content is a tag that is unique in the whole run. The compressed row that a token
// finishes, and its ring row, hold that tag; so a row read back tells exactly whose write it was.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cache/kv_cache_manager.h"
#include "step/step_metadata.h"

namespace dsv4rt::property {

struct FakePool {
  std::int32_t ratio = 0;
  std::int32_t ratio_class = 0;
  std::int32_t rows_per_block = 0;
};

struct RingRow {
  std::int64_t position = -1;
  std::uint64_t tag = 0;
};

class FakeDevice {
 public:
  // Ring sizes in rows, one per kind of ring.
  FakeDevice(std::vector<FakePool> pools, std::vector<std::int64_t> ring_rows, std::int32_t slots,
             const KVCacheManager& manager)
      : pools_(std::move(pools)) {
    for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
      const auto id = static_cast<int>(pool);
      const auto blocks = static_cast<std::size_t>(manager.usage(id).total) + 1;
      rows_.emplace_back(blocks * static_cast<std::size_t>(pools_[pool].rows_per_block), 0);
      strides_.push_back(manager.table_stride(id));
      tables_.emplace_back(static_cast<std::size_t>(slots) * static_cast<std::size_t>(strides_[pool]), 0);
    }
    for (const std::int64_t rows : ring_rows) {
      rings_.emplace_back(static_cast<std::size_t>(slots), std::vector<RingRow>(static_cast<std::size_t>(rows)));
    }
  }

  // Room for boundary states; of every kind of ring, the rows before the boundary that a state keeps.
  void make_states(std::int32_t states, const std::vector<std::int64_t>& rows) {
    for (const std::int64_t kept : rows) {
      states_.emplace_back(static_cast<std::size_t>(states), std::vector<RingRow>(static_cast<std::size_t>(kept)));
    }
  }

  // Copies, then table deltas, then every token's writes: the order of a real step. tags[row of x]. States that no ring
  // holds after the step get their rows from the rings before it and from what it computes.
  void run(const StepView& step, const std::vector<std::uint64_t>& tags,
           std::span<const PlannedCapture> captures = {}) {
    for (const PlannedCapture& capture : captures) capture_before(capture);
    for (std::int32_t i = 0; i < step.counts.block_copies; ++i) {
      const BlockCopy& copy = step.block_copies[i];
      const auto pool = static_cast<std::size_t>(copy.table);
      for (std::int32_t row = 0; row < pools_[pool].rows_per_block; ++row) {
        at(pool, copy.target, row) = at(pool, copy.source, row);
      }
    }
    for (std::int32_t i = 0; i < step.counts.table_deltas; ++i) {
      const BlockTableDelta& delta = step.table_deltas[i];
      table_entry(static_cast<std::size_t>(delta.table), delta.slot, delta.index) = delta.block;
    }
    for (std::int32_t t = 0; t < step.counts.tokens; ++t) {
      if (step.token_sequence[t] >= 0) write_token(step, t, tags[static_cast<std::size_t>(t)]);
    }
    for (const PlannedCapture& capture : captures) {
      const std::int32_t first = step.sequence_first_token[capture.segment];
      for (std::int32_t position = capture.start; position < capture.boundary; ++position) {
        keep(capture.state, capture.boundary,
             {position, tags[static_cast<std::size_t>(first + position - capture.start)]});
      }
    }
  }

  // The rows before the boundary out of the slot's rings, whatever these hold there.
  void copy_out(const BoundaryCopyPlan& copy) {
    capture_before({.slot = copy.slot, .start = copy.boundary, .boundary = copy.boundary, .state = copy.state});
  }
  // A state into the slot's rings; all other rows stay as they are.
  void copy_in(const BoundaryCopyPlan& copy) {
    for (std::size_t ring = 0; ring < rings_.size(); ++ring) {
      const std::vector<RingRow>& kept = states_[ring][static_cast<std::size_t>(copy.state)];
      std::vector<RingRow>& rows = rings_[ring][static_cast<std::size_t>(copy.slot)];
      const auto count = static_cast<std::int64_t>(kept.size());
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t position = copy.boundary - count + i;
        if (position >= 0) rows[static_cast<std::size_t>(position) % rows.size()] = kept[static_cast<std::size_t>(i)];
      }
    }
  }
  // Block ids of one slot, pool after pool: what KVCacheManager::table_row gives.
  void write_table_row(std::int32_t slot, std::span<const std::int32_t> ids, std::span<const std::int32_t> columns) {
    std::size_t next = 0;
    for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
      for (std::int32_t c = 0; c < columns[pool]; ++c) table_entry(pool, slot, c) = ids[next++];
    }
  }
  // What a freed block holds afterwards is nobody's.
  void poison(const FreedBlock& freed) {
    for (std::int32_t row = 0; row < pools_[static_cast<std::size_t>(freed.pool)].rows_per_block; ++row) {
      at(static_cast<std::size_t>(freed.pool), freed.block.value, row) = kPoison;
    }
  }

  // What a caller does after KVCacheManager::fork.
  void fork(std::int32_t source, std::int32_t target) {
    for (auto& ring : rings_) ring[static_cast<std::size_t>(target)] = ring[static_cast<std::size_t>(source)];
    for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
      for (std::int32_t c = 0; c < strides_[pool]; ++c) table_entry(pool, target, c) = table_entry(pool, source, c);
    }
  }

  // What a caller does after KVCacheManager::restore_sequence: the table's row, the rows of the blocks and, of every
  // ring, positions from first_needed[ring] on. Beyond the length the rings hold what a rejected step leaves.
  void restore(const KVCacheManager& manager, SequenceId id, std::int32_t slot,
               const std::vector<std::uint64_t>& tokens, const std::vector<std::int64_t>& first_needed,
               std::int32_t rejected) {
    const auto length = static_cast<std::int64_t>(tokens.size());
    for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
      const std::vector<BlockId> blocks = *manager.blocks(id, static_cast<int>(pool));
      for (std::size_t c = 0; c < blocks.size(); ++c)
        table_entry(pool, slot, static_cast<std::int32_t>(c)) = blocks[c].value;
      const std::int32_t rows = pools_[pool].rows_per_block;
      for (std::int64_t row = 0; row < length / pools_[pool].ratio; ++row) {
        at(pool, table_entry(pool, slot, static_cast<std::int32_t>(row / rows)),
           static_cast<std::int32_t>(row % rows)) =
            tokens[static_cast<std::size_t>((row + 1) * pools_[pool].ratio - 1)];
      }
    }
    for (std::size_t ring = 0; ring < rings_.size(); ++ring) {
      std::vector<RingRow>& rows = rings_[ring][static_cast<std::size_t>(slot)];
      rows.assign(rows.size(), RingRow{});
      for (std::int64_t position = first_needed[ring]; position < length + rejected; ++position) {
        const std::uint64_t tag = position < length ? tokens[static_cast<std::size_t>(position)] : 0;
        rows[static_cast<std::size_t>(position) % rows.size()] = {position, tag};
      }
    }
  }

  [[nodiscard]] std::uint64_t read_row(std::size_t pool, std::int32_t slot, std::int64_t row) {
    const std::int64_t rows = pools_[pool].rows_per_block;
    return at(pool, table_entry(pool, slot, static_cast<std::int32_t>(row / rows)),
              static_cast<std::int32_t>(row % rows));
  }
  [[nodiscard]] std::int32_t block_at(std::size_t pool, std::int32_t slot, std::int32_t column) {
    return table_entry(pool, slot, column);
  }
  [[nodiscard]] RingRow ring_row(std::size_t ring, std::int32_t slot, std::int64_t position) const {
    const std::vector<RingRow>& rows = rings_[ring][static_cast<std::size_t>(slot)];
    return rows[static_cast<std::size_t>(position) % rows.size()];
  }

 private:
  static constexpr std::uint64_t kPoison = ~std::uint64_t{0};

  // The rows of a state that lie before `start`.
  void capture_before(const PlannedCapture& capture) {
    for (std::size_t ring = 0; ring < rings_.size(); ++ring) {
      const std::vector<RingRow>& rows = rings_[ring][static_cast<std::size_t>(capture.slot)];
      std::vector<RingRow>& kept = states_[ring][static_cast<std::size_t>(capture.state)];
      const auto count = static_cast<std::int64_t>(kept.size());
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t position = capture.boundary - count + i;
        kept[static_cast<std::size_t>(i)] = position >= 0 && position < capture.start
                                                ? rows[static_cast<std::size_t>(position) % rows.size()]
                                                : RingRow{};
      }
    }
  }
  void keep(std::int32_t state, std::int32_t boundary, const RingRow& row) {
    for (auto& states : states_) {
      std::vector<RingRow>& kept = states[static_cast<std::size_t>(state)];
      const std::int64_t i = row.position - boundary + static_cast<std::int64_t>(kept.size());
      if (i >= 0) kept[static_cast<std::size_t>(i)] = row;
    }
  }
  std::uint64_t& at(std::size_t pool, std::int32_t block, std::int32_t row) {
    return rows_[pool].at(static_cast<std::size_t>(block) * static_cast<std::size_t>(pools_[pool].rows_per_block) +
                          static_cast<std::size_t>(row));
  }
  std::int32_t& table_entry(std::size_t pool, std::int32_t slot, std::int32_t column) {
    return tables_[pool].at(static_cast<std::size_t>(slot) * static_cast<std::size_t>(strides_[pool]) +
                            static_cast<std::size_t>(column));
  }
  void write_token(const StepView& step, std::int32_t t, std::uint64_t tag) {
    const std::int32_t slot = step.sequence_slot[step.token_sequence[t]];
    const std::int32_t position = step.token_position[t];
    for (auto& ring : rings_) {
      std::vector<RingRow>& rows = ring[static_cast<std::size_t>(slot)];
      rows[static_cast<std::size_t>(position) % rows.size()] = {position, tag};
    }
    for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
      const std::int32_t c = pools_[pool].ratio_class;
      if (step.valid_mask[c][t] == 0) continue;
      const std::int32_t row = step.row_index[c][t];
      const std::int32_t rows = pools_[pool].rows_per_block;
      at(pool, table_entry(pool, slot, row / rows), row % rows) = tag;
    }
  }

  std::vector<FakePool> pools_;
  std::vector<std::vector<std::uint64_t>> rows_;          // [pool][block * rows_per_block + row]
  std::vector<std::int32_t> strides_;                     // [pool]
  std::vector<std::vector<std::int32_t>> tables_;         // [pool][slot * stride + column]
  std::vector<std::vector<std::vector<RingRow>>> rings_;  // [kind][slot][row]
  // Same kinds: [kind][state][row], the row of position boundary - 1 last.
  std::vector<std::vector<std::vector<RingRow>>> states_;
};

}  // namespace dsv4rt::property
