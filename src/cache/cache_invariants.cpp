// Recomputes every invariant of the cache from the block tables and compares it with the running
// counts. For tests and for callers who suspect a defect: it allocates and reads every table.
#include <string>

#include "cache/cache_state.h"

namespace dsv4rt {
namespace {

Status broken(std::string message) {
  return {StatusCode::kInternal, std::move(message)};
}

std::string sequence_name(std::int32_t slot) {
  return "sequence in slot " + std::to_string(slot);
}

Status check_lengths(const CacheState& state) {
  for (std::int32_t slot = 0; slot < state.sequences.capacity(); ++slot) {
    const SequenceRecord& record = state.sequences[slot];
    const bool in_range = record.length >= 0 && record.length <= state.limits.max_context_tokens;
    if (record.generation == 0 || !in_range || (!record.live && record.length != 0)) {
      return broken(sequence_name(slot) + " has generation " + std::to_string(record.generation) + " and length " +
                    std::to_string(record.length));
    }
    if (record.high_water < record.length || !state.reachable(record.length, record.high_water)) {
      return broken(sequence_name(slot) + " of length " + std::to_string(record.length) +
                    " is not served by rings written up to " + std::to_string(record.high_water));
    }
  }
  return {};
}

// Cells hold blocks exactly as far as the length says; blocks beyond maybe_shared are not shared.
Status check_table(const CacheState& state, const KvCacheGroup& group, std::size_t member,
                   std::vector<std::int32_t>& owners) {
  const BlockAllocator& allocator = state.allocators[static_cast<std::size_t>(group.pools()[member])];
  for (std::int32_t slot = 0; slot < state.sequences.capacity(); ++slot) {
    const std::int32_t held = group.blocks(state.sequences[slot].length);
    for (std::int32_t column = 0; column < group.columns(); ++column) {
      const std::int32_t block = group.table_entry(slot, column)[member];
      if (block < 0 || block > allocator.total() || (block != 0) != (column < held)) {
        return broken(sequence_name(slot) + " column " + std::to_string(column) + " holds block " +
                      std::to_string(block) + ", but the sequence has " + std::to_string(held) + " blocks");
      }
      ++owners[static_cast<std::size_t>(block)];
      if (column < held && column >= group.shared_prefix_blocks(slot) && allocator.owners(BlockId(block)) > 1) {
        return broken(sequence_name(slot) + " would write shared block " + std::to_string(block) + " in place");
      }
      const bool tail = column == group.full_blocks(state.sequences[slot].length) && column < held;
      const std::int32_t row = group.rows(state.sequences[slot].length) - column * group.rows_per_block();
      if (tail && column >= group.shared_prefix_blocks(slot) && allocator.prefix_use(BlockId(block)).rows > row) {
        return broken(sequence_name(slot) + " would write rows of block " + std::to_string(block) +
                      " that prefixes need");
      }
    }
  }
  owners[0] = 0;  // empty entries
  return {};
}

Status check_reservations(const CacheState& state, const KvCacheGroup& group) {
  std::int64_t reserved = 0;
  for (std::int32_t slot = 0; slot < state.sequences.capacity(); ++slot) {
    const SequenceRecord& record = state.sequences[slot];
    if (record.live) reserved += group.outstanding_reservation(record, slot);
    if (group.shared_prefix_blocks(slot) > group.blocks(record.length)) {
      return broken(sequence_name(slot) + " shares more blocks than it has");
    }
  }
  if (reserved != group.reserved_blocks()) {
    return broken("reservations sum up to " + std::to_string(reserved) + " blocks, counted are " +
                  std::to_string(group.reserved_blocks()));
  }
  return {};
}

}  // namespace

Status CacheState::check() const {
  if (Status status = sequences.check(); !status.ok()) return status;
  if (Status status = check_lengths(*this); !status.ok()) return status;
  if (prefixes != nullptr) {
    if (Status status = prefixes->check(*this); !status.ok()) return status;
  }
  std::vector<std::int32_t> owners;
  for (const KvCacheGroup& group : groups) {
    if (Status status = check_reservations(*this, group); !status.ok()) return status;
    for (std::size_t member = 0; member < group.pools().size(); ++member) {
      const std::int32_t pool = group.pools()[member];
      const BlockAllocator& allocator = allocators[static_cast<std::size_t>(pool)];
      const auto in_pool = [&](const Status& status) {
        return broken("pool " + std::to_string(pool) + ": " + status.message());
      };
      owners.assign(static_cast<std::size_t>(allocator.total()) + 1, 0);
      if (Status status = check_table(*this, group, member, owners); !status.ok()) return in_pool(status);
      const std::vector<PrefixUse> uses =
          prefixes != nullptr ? prefixes->expected_use(*this, pool) : std::vector<PrefixUse>{};
      if (Status status = allocator.check(owners, uses); !status.ok()) return in_pool(status);
      if (allocator.available() < group.reserved_blocks()) {
        return broken("pool " + std::to_string(pool) + ": " + std::to_string(allocator.available()) +
                      " blocks free or cached, reserved are " + std::to_string(group.reserved_blocks()));
      }
    }
  }
  return {};
}

}  // namespace dsv4rt
