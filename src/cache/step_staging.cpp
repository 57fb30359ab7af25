// Blocks of one step: count what every pool must give, check all pools, and only then take. No
// failure is possible after the first change that the caller can see.
#include <algorithm>
#include <optional>

#include "cache/cache_state.h"

namespace dsv4rt {
namespace {

// Members whose last block somebody else owns too, or prefixes need as it is, get a copy. The owner leaves the shared
// block at once, so that the last of several owners in one batch finds itself alone and writes in place. A block that
// is left to prefixes alone keeps an owner until targets are taken: it must not be given away before it is copied.
void count_copies(CacheState& state, std::int32_t group_index, const StepSegment& segment, std::int32_t column) {
  const KvCacheGroup& group = state.groups[static_cast<std::size_t>(group_index)];
  const std::int32_t* table_entry = group.table_entry(segment.slot, column);
  const std::int32_t row = group.rows(segment.start) - column * group.rows_per_block();
  for (std::size_t member = 0; member < group.pools().size(); ++member) {
    const auto pool = static_cast<std::size_t>(group.pools()[member]);
    const BlockId block(table_entry[member]);
    if (state.allocators[pool].writable(block, row)) continue;
    const bool held = state.allocators[pool].owners(block) == 1;
    if (!held) state.allocators[pool].drop_owner(block);
    ++state.copied_blocks[pool];
    state.step.copies.push_back({.slot = segment.slot,
                                 .group = group_index,
                                 .member = static_cast<std::int32_t>(member),
                                 .column = column,
                                 .source = table_entry[member],
                                 .held = held});
  }
}

void count_group(CacheState& state, std::int32_t group_index) {
  const auto g = static_cast<std::size_t>(group_index);
  KvCacheGroup& group = state.groups[g];
  state.first_new_entry[g] = state.new_entries.size();
  std::int64_t reserved = group.reserved_blocks();
  for (const StepSegment& segment : state.step.segments) {
    const std::int32_t before = segment.start;
    const std::int32_t after = segment.start + segment.tokens;
    if (group.rows(before) == group.rows(after)) continue;  // writes no row here
    const std::int32_t blocks_after = group.blocks(after);
    for (std::int32_t column = group.blocks(before); column < blocks_after; ++column) {
      state.new_entries.push_back({group.table_entry(segment.slot, column), segment.slot, column});
    }
    const std::int32_t shared = group.shared_prefix_blocks(segment.slot);
    const std::int32_t full = group.full_blocks(before);
    if (group.tail_in_shared_prefix(before, shared)) count_copies(state, group_index, segment, full);
    const std::int32_t reserve_tokens = state.sequences[segment.slot].reserve_tokens;
    if (reserve_tokens > 0) {
      // From `full` on, every block the sequence holds after the step is its own.
      reserved += group.outstanding_reservation(reserve_tokens, after, std::min(shared, full)) -
                  group.outstanding_reservation(reserve_tokens, before, shared);
    }
  }
  state.first_new_entry[g + 1] = state.new_entries.size();
  state.reserved_after[g] = reserved;
}

// The blocks taken and those still owed to reservations must both be there.
std::optional<Shortage> find_shortage(const CacheState& state) noexcept {
  for (std::size_t pool = 0; pool < state.allocators.size(); ++pool) {
    const auto g = static_cast<std::size_t>(state.group_of_pool[pool]);
    const std::int64_t taken = state.new_entries_of(g) + state.copied_blocks[pool];
    if (state.allocators[pool].available() - taken < state.reserved_after[g]) {
      // Stated against the present reservations: what reserved sequences take is already set aside.
      const std::int64_t wanted = taken + state.reserved_after[g] - state.groups[g].reserved_blocks();
      return Shortage{.pool = static_cast<std::int32_t>(pool), .wanted = wanted};
    }
  }
  return {};
}

void undo_copy_counts(CacheState& state) {
  for (const StagedCopy& copy : state.step.copies) {
    const KvCacheGroup& group = state.groups[static_cast<std::size_t>(copy.group)];
    const std::int32_t pool = group.pools()[static_cast<std::size_t>(copy.member)];
    if (!copy.held) state.allocators[static_cast<std::size_t>(pool)].add_owner(BlockId(copy.source));
  }
  state.step.copies.clear();
}

// What is to be taken becomes free, at the cost of cached prefixes.
void make_room(CacheState& state) {
  if (state.prefixes == nullptr) return;
  for (std::size_t pool = 0; pool < state.allocators.size(); ++pool) {
    const auto g = static_cast<std::size_t>(state.group_of_pool[pool]);
    state.prefixes->reclaim(state, static_cast<std::int32_t>(pool),
                            state.new_entries_of(g) + state.copied_blocks[pool]);
  }
}

// Units that made way may have been all that needed a block whole: its one owner then writes in place after all. What
// is left to copy stays with prefixes, so that a rollback finds it where it was.
void drop_needless_copies(CacheState& state) {
  std::erase_if(state.step.copies, [&](const StagedCopy& copy) {
    const KvCacheGroup& group = state.groups[static_cast<std::size_t>(copy.group)];
    const auto pool = static_cast<std::size_t>(group.pools()[static_cast<std::size_t>(copy.member)]);
    const std::int32_t row = group.rows(state.sequences[copy.slot].length) - copy.column * group.rows_per_block();
    return copy.held && state.allocators[pool].writable(BlockId(copy.source), row);
  });
}

void take_copies(CacheState& state) {
  for (StagedCopy& copy : state.step.copies) {
    KvCacheGroup& group = state.groups[static_cast<std::size_t>(copy.group)];
    const std::int32_t pool = group.pools()[static_cast<std::size_t>(copy.member)];
    copy.target = state.allocators[static_cast<std::size_t>(pool)].allocate().value;
    group.table_entry(copy.slot, copy.column)[copy.member] = copy.target;
    state.metadata.add_delta({.table = pool, .slot = copy.slot, .index = copy.column, .block = copy.target});
    state.metadata.add_copy({.table = pool, .source = copy.source, .target = copy.target, .reserved = 0});
  }
}

// Pool by pool: the free list's top, the group's table entries and the deltas are all walked in order.
void take_new_blocks(CacheState& state, std::size_t g) {
  KvCacheGroup& group = state.groups[g];
  const CacheState::NewEntry* table_entries = state.new_entries.data() + state.first_new_entry[g];
  const auto count = static_cast<std::int32_t>(state.new_entries_of(g));
  for (std::size_t member = 0; member < group.pools().size() && count > 0; ++member) {
    const std::int32_t pool = group.pools()[member];
    BlockTableDelta* delta = state.metadata.add_deltas(count);
    state.allocators[static_cast<std::size_t>(pool)].allocate(count, [=](std::int32_t i, BlockId block) {
      table_entries[i].blocks[member] = block.value;
      delta[i] = {.table = pool, .slot = table_entries[i].slot, .index = table_entries[i].column, .block = block.value};
    });
  }
}

// After the step a sequence owns the blocks it wrote alone.
void settle_group(CacheState& state, std::size_t g) noexcept {
  KvCacheGroup& group = state.groups[g];
  std::int32_t* old_shared = state.step.old_shared_blocks.data() + g * state.seen_in_batch.size();
  for (std::size_t i = 0; i < state.step.segments.size(); ++i) {
    const StepSegment& segment = state.step.segments[i];
    const std::int32_t shared = group.shared_prefix_blocks(segment.slot);
    old_shared[i] = shared;
    if (shared == 0 || group.rows(segment.start) == group.rows(segment.start + segment.tokens)) continue;
    group.set_shared_prefix_blocks(segment.slot, std::min(shared, group.full_blocks(segment.start)));
  }
  state.step.old_reserved_blocks[g] = group.reserved_blocks();
  group.set_reserved_blocks(state.reserved_after[g]);
}

}  // namespace

Status stage_blocks(CacheState& state) {
  state.step.copies.clear();
  state.new_entries.clear();
  std::fill(state.copied_blocks.begin(), state.copied_blocks.end(), 0);
  for (std::size_t g = 0; g < state.groups.size(); ++g) count_group(state, static_cast<std::int32_t>(g));
  if (const std::optional<Shortage> shortage = find_shortage(state)) {
    undo_copy_counts(state);  // before the text of the refusal: making it may run out of memory
    return state.blocks_short(shortage->pool, shortage->wanted, "step");
  }
  make_room(state);
  drop_needless_copies(state);
  state.metadata.begin();
  take_copies(state);
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    take_new_blocks(state, g);
    settle_group(state, g);
  }
  for (const StagedCopy& copy : state.step.copies) {
    const KvCacheGroup& group = state.groups[static_cast<std::size_t>(copy.group)];
    const auto pool = static_cast<std::size_t>(group.pools()[static_cast<std::size_t>(copy.member)]);
    if (copy.held) state.allocators[pool].drop_owner(BlockId(copy.source));
  }
  return {};
}

// Goes in the reverse order of stage_blocks, so that the free lists end up as they were.
void rollback_blocks(CacheState& state) {
  for (std::size_t g = state.groups.size(); g-- > 0;) {
    KvCacheGroup& group = state.groups[g];
    const std::int32_t* old_shared = state.step.old_shared_blocks.data() + g * state.seen_in_batch.size();
    for (std::size_t i = state.step.segments.size(); i-- > 0;) {
      const StepSegment& segment = state.step.segments[i];
      const std::int32_t kept = group.blocks(segment.start);
      for (std::int32_t column = group.blocks(segment.start + segment.tokens) - 1; column >= kept; --column) {
        std::int32_t* table_entry = group.table_entry(segment.slot, column);
        for (std::size_t member = group.pools().size(); member-- > 0;) {
          state.allocators[static_cast<std::size_t>(group.pools()[member])].drop_owner(BlockId(table_entry[member]));
          table_entry[member] = 0;
        }
      }
      group.set_shared_prefix_blocks(segment.slot, old_shared[i]);
    }
    group.set_reserved_blocks(state.step.old_reserved_blocks[g]);
  }
  for (std::size_t i = state.step.copies.size(); i-- > 0;) {
    const StagedCopy& copy = state.step.copies[i];
    KvCacheGroup& group = state.groups[static_cast<std::size_t>(copy.group)];
    const auto pool = static_cast<std::size_t>(group.pools()[static_cast<std::size_t>(copy.member)]);
    state.allocators[pool].drop_owner(BlockId(copy.target));
    state.allocators[pool].add_owner(BlockId(copy.source));
    group.table_entry(copy.slot, copy.column)[copy.member] = copy.source;
  }
  state.step.copies.clear();
}

}  // namespace dsv4rt
