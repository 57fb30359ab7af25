// KvCacheGroup: the pools that page alike, their block tables and what is reserved in them.
//
// Pools of one ratio and block size (for instance the CSA rows and index keys of every CSA layer)
// always hold the same number of blocks for a sequence and are forked together. So lengths, sharing
// and reservations are counted once per group, while every pool keeps its own allocator and ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache_layout.h"
#include "cache/sequence_table.h"

namespace dsv4rt {

class KvCacheGroup {
 public:
  // One group per distinct (ratio, rows per block), in order of first appearance.
  static std::vector<KvCacheGroup> create_all(const CacheLayout& layout, std::int32_t max_sequences,
                                              std::int64_t max_context_tokens);

  // Pool ids, ascending. A pool's position in this list is its `member` below.
  [[nodiscard]] std::span<const std::int32_t> pools() const noexcept { return pools_; }
  [[nodiscard]] std::int32_t columns() const noexcept { return columns_; }
  [[nodiscard]] std::int32_t rows_per_block() const noexcept { return rows_per_block_; }

  // Finished rows, and the blocks that hold them, of a sequence of `tokens`.
  [[nodiscard]] std::int32_t rows(std::int32_t tokens) const noexcept { return divide(tokens, ratio_); }
  [[nodiscard]] std::int32_t blocks(std::int32_t tokens) const noexcept {
    return divide(rows(tokens) + rows_per_block_ - 1, rows_per_block_);
  }
  // Blocks without a free row.
  [[nodiscard]] std::int32_t full_blocks(std::int32_t tokens) const noexcept {
    return divide(rows(tokens), rows_per_block_);
  }

  // The ids of one table entry, one per member; 0 where the sequence has no block.
  [[nodiscard]] std::int32_t* table_entry(std::int32_t slot, std::int32_t column) noexcept {
    return table_.data() + entry_index(slot, column);
  }
  [[nodiscard]] const std::int32_t* table_entry(std::int32_t slot, std::int32_t column) const noexcept {
    return table_.data() + entry_index(slot, column);
  }

  // Leading blocks of the slot's sequence that others may own too; an upper bound. Blocks from here
  // on are the sequence's alone.
  [[nodiscard]] std::int32_t shared_prefix_blocks(std::int32_t slot) const noexcept {
    return shared_prefix_blocks_[static_cast<std::size_t>(slot)];
  }
  void set_shared_prefix_blocks(std::int32_t slot, std::int32_t blocks) noexcept {
    shared_prefix_blocks_[static_cast<std::size_t>(slot)] = blocks;
  }
  // Whether the next row goes into a block that others may own.
  [[nodiscard]] bool tail_in_shared_prefix(std::int32_t tokens, std::int32_t shared_blocks) const noexcept {
    return shared_blocks > full_blocks(tokens) && blocks(tokens) > full_blocks(tokens);
  }

  // Blocks that a sequence of `tokens` with a reservation may still take from every pool of the
  // group before it reaches reserve_tokens: the missing ones, and one for copying a shared tail.
  [[nodiscard]] std::int32_t outstanding_reservation(std::int32_t reserve_tokens, std::int32_t tokens,
                                                     std::int32_t shared_blocks) const noexcept {
    if (reserve_tokens == 0) return 0;
    return std::max(0, blocks(reserve_tokens) - blocks(tokens)) +
           (tail_in_shared_prefix(tokens, shared_blocks) ? 1 : 0);
  }
  [[nodiscard]] std::int32_t outstanding_reservation(const SequenceRecord& record, std::int32_t slot) const noexcept {
    return outstanding_reservation(record.reserve_tokens, record.length, shared_prefix_blocks(slot));
  }

  // Sum of the outstanding reservations of all sequences: what must stay free in every pool of the group.
  [[nodiscard]] std::int64_t reserved_blocks() const noexcept { return reserved_blocks_; }
  void set_reserved_blocks(std::int64_t blocks) noexcept { reserved_blocks_ = blocks; }

 private:
  KvCacheGroup(std::int32_t ratio, std::int32_t rows_per_block) : ratio_(ratio), rows_per_block_(rows_per_block) {}

  // 32-bit unsigned: the divisions are on the path of every decode step.
  static std::int32_t divide(std::int32_t value, std::int32_t divisor) noexcept {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(value) / static_cast<std::uint32_t>(divisor));
  }
  [[nodiscard]] std::size_t entry_index(std::int32_t slot, std::int32_t column) const noexcept {
    return static_cast<std::size_t>(slot) * slot_stride_ + static_cast<std::size_t>(column) * pools_.size();
  }

  std::int32_t ratio_;
  std::int32_t rows_per_block_;
  std::int32_t columns_ = 0;
  std::vector<std::int32_t> pools_;
  // [slots][columns][members]: members together, so that a step that gives a sequence one new block
  // in every pool writes neighbouring words. slot_stride_ >= columns * members is an odd number of
  // cache lines: contexts are powers of two, and the same column of all slots must not fall into
  // the same cache set.
  std::vector<std::int32_t> table_;
  std::size_t slot_stride_ = 0;
  std::vector<std::int32_t> shared_prefix_blocks_;  // [slots]
  std::int64_t reserved_blocks_ = 0;
};

}  // namespace dsv4rt
