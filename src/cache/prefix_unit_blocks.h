// Which blocks hold the rows of one unit of a prefix. Private to src/cache.
//
// Unit number d (from 1) covers tokens [(d - 1) * unit_tokens, d * unit_tokens). In a group of pools these are rows of
// one block column or, where blocks are smaller than units, of several.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/arithmetic.h"
#include "cache/kv_cache_group.h"

namespace dsv4rt {

// One block that a unit uses.
struct UnitBlock {
  std::size_t group = 0;
  std::size_t member = 0;  // number of the pool in its group
  std::int32_t pool = 0;
  std::int32_t column = 0;       // column of the block table
  std::int32_t rows = 0;         // leading rows of the block that the unit and those before it fill
  std::int32_t rows_before = 0;  // and those before it alone; 0: the block begins with the unit
  bool inside_unit = false;      // the unit goes on behind the block
  std::size_t id = 0;            // place of the block's id among the ids of the unit
  std::size_t id_before = 0;     // and among those of the unit before; with rows_before > 0
};

class UnitBlocks {
 public:
  UnitBlocks(std::span<const KvCacheGroup> groups, std::int32_t unit_tokens)
      : groups_(groups), unit_tokens_(unit_tokens) {}

  // Ids that any unit has at most.
  [[nodiscard]] std::size_t ids() const noexcept {
    std::size_t total = 0;
    for (const KvCacheGroup& group : groups_) total += ids_of(group);
    return total;
  }

  // Group by group, column by column, member by member.
  template <class Visit>
  void for_each(std::int32_t unit, Visit visit) const {
    std::size_t first_id = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const KvCacheGroup& group = groups_[g];
      const std::int32_t per_block = group.rows_per_block();
      const std::int32_t before = group.rows((unit - 1) * unit_tokens_);
      const std::int32_t after = group.rows(unit * unit_tokens_);
      const std::int32_t first = before / per_block;
      const std::int32_t first_of_before = unit > 1 ? group.rows((unit - 2) * unit_tokens_) / per_block : 0;
      const std::size_t members = group.pools().size();
      for (std::int32_t column = first; column * per_block < after; ++column) {
        for (std::size_t member = 0; member < members; ++member) {
          const std::size_t at = first_id + member;
          visit(UnitBlock{.group = g,
                          .member = member,
                          .pool = group.pools()[member],
                          .column = column,
                          .rows = std::min(after - column * per_block, per_block),
                          .rows_before = std::max(before - column * per_block, 0),
                          .inside_unit = (column + 1) * per_block < after,
                          .id = at + static_cast<std::size_t>(column - first) * members,
                          .id_before = at + static_cast<std::size_t>(column - first_of_before) * members});
        }
      }
      first_id += ids_of(group);
    }
  }

  // The block that `unit` has in the place of `block`, a block of the unit after it with rows_before > 0.
  [[nodiscard]] UnitBlock of_unit_before(std::int32_t unit, const UnitBlock& block) const noexcept {
    const KvCacheGroup& group = groups_[block.group];
    const std::int32_t first_row = block.column * group.rows_per_block();
    const std::size_t members = group.pools().size();
    UnitBlock before = block;
    before.rows = block.rows_before;
    before.inside_unit = false;
    before.rows_before = std::max(group.rows((unit - 1) * unit_tokens_) - first_row, 0);
    before.id = block.id_before;
    if (before.rows_before > 0) {
      const std::int32_t first = group.rows((unit - 1) * unit_tokens_) / group.rows_per_block();
      const std::int32_t first_of_before = group.rows((unit - 2) * unit_tokens_) / group.rows_per_block();
      before.id_before = block.id_before + static_cast<std::size_t>(first - first_of_before) * members;
    }
    return before;
  }

 private:
  // Rows of a unit may begin anywhere in a block.
  [[nodiscard]] std::size_t ids_of(const KvCacheGroup& group) const noexcept {
    const std::int32_t rows = group.rows(unit_tokens_);
    const std::int32_t per_block = group.rows_per_block();
    const bool aligned = per_block % rows == 0 || rows % per_block == 0;
    const std::int32_t columns = ceil_div(rows, per_block) + (aligned ? 0 : 1);
    return static_cast<std::size_t>(columns) * group.pools().size();
  }

  std::span<const KvCacheGroup> groups_;
  std::int32_t unit_tokens_;
};

}  // namespace dsv4rt
