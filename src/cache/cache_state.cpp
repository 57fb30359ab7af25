#include "cache/cache_state.h"

#include <algorithm>
#include <limits>
#include <string>

#include "cache/invalid.h"

namespace dsv4rt {
namespace {

// Layers of one kind have equal rings: one of each says all about rollback.
std::vector<SlotSpec> distinct_rings(const CacheLayout& layout) {
  std::vector<SlotSpec> rings;
  for (const SlotSpec& slot : layout.slots()) {
    const bool known = std::any_of(rings.begin(), rings.end(), [&](const SlotSpec& ring) {
      return ring.needed_rows == slot.needed_rows && ring.ring_rows == slot.ring_rows && ring.ratio == slot.ratio &&
             ring.overlap == slot.overlap;
    });
    if (!known) rings.push_back(slot);
  }
  return rings;
}

}  // namespace

Status check_cache_plan(const LayerSchedule& schedule, const CacheLayout& layout, const MemoryPlan& plan) {
  const CacheLimits& limits = plan.limits;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (limits.max_sequences < 1 || limits.max_step_tokens < 1 || limits.max_context_tokens < 1 ||
      limits.max_sequences > kMost / 2 || limits.max_step_tokens > kMost / 2 || limits.max_context_tokens > kMost / 2) {
    return invalid(
        "memory plan: limits are not from plan_memory: max_sequences = " + std::to_string(limits.max_sequences) +
        ", max_step_tokens = " + std::to_string(limits.max_step_tokens) +
        ", max_context_tokens = " + std::to_string(limits.max_context_tokens));
  }
  if (plan.pool_blocks.size() != layout.pools().size()) {
    return invalid("memory plan: pool_blocks has " + std::to_string(plan.pool_blocks.size()) +
                   " entries; accepted: one for each of the layout's " + std::to_string(layout.pools().size()) +
                   " pools");
  }
  for (std::size_t pool = 0; pool < plan.pool_blocks.size(); ++pool) {
    const std::int64_t blocks = plan.pool_blocks[pool];
    if (blocks >= 1 && blocks <= kMost) continue;
    return invalid("memory plan: pool_blocks[" + std::to_string(pool) + "] = " + std::to_string(blocks) +
                   "; accepted: 1 .. " + std::to_string(kMost));
  }
  for (const PoolSpec& pool : layout.pools()) {
    if (schedule.ratio_class(pool.ratio) == pool.ratio_class) continue;
    return invalid("cache layout: ratio " + std::to_string(pool.ratio) + " of layer " +
                   std::to_string(pool.layer.value) + " is not in the layer schedule it is used with");
  }
  return {};
}

CacheState::CacheState(const LayerSchedule& schedule, const CacheLayout& cache_layout, const MemoryPlan& plan,
                       const StepCapacity& capacity, const PrefixCacheSettings& prefix_settings,
                       const HandleOrigin& handles)
    : layout(cache_layout),
      limits(plan.limits),
      groups(KvCacheGroup::create_all(layout, limits.max_sequences, limits.max_context_tokens)),
      group_of_pool(layout.pools().size()),
      rings(distinct_rings(layout)),
      sequences(limits.max_sequences, handles.first_generation),
      metadata(capacity, schedule.ratios()),
      seen_in_batch(static_cast<std::size_t>(limits.max_sequences), 0),
      first_new_entry(groups.size() + 1, 0),
      copied_blocks(layout.pools().size(), 0),
      reserved_after(groups.size(), 0) {
  allocators.reserve(plan.pool_blocks.size());
  const bool cached = limits.boundary_states > 0;
  const auto with_prefixes = cached ? BlockAllocator::Prefixes::kCached : BlockAllocator::Prefixes::kNone;
  for (const std::int64_t blocks : plan.pool_blocks) {
    allocators.emplace_back(static_cast<std::int32_t>(blocks), with_prefixes);
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const std::int32_t pool : groups[g].pools()) {
      group_of_pool[static_cast<std::size_t>(pool)] = static_cast<std::int32_t>(g);
    }
  }
  step.serial = handles.steps_before;
  const auto slots = static_cast<std::size_t>(limits.max_sequences);
  step.segments.reserve(slots);
  step.old_high_water.resize(slots);
  step.old_shared_blocks.resize(slots * groups.size());
  step.old_reserved_blocks.resize(groups.size());
  step.copies.reserve(static_cast<std::size_t>(capacity.block_copies));
  step.emptied.reserve(slots);
  // Every new entry gives each pool of its group a delta, so deltas bound the table entries.
  new_entries.reserve(static_cast<std::size_t>(capacity.table_deltas));
  if (cached) prefixes = std::make_unique<PrefixCache>(*this, prefix_settings);
}

std::int64_t CacheState::earliest_length(std::int32_t high_water) const noexcept {
  std::int64_t earliest = 0;
  for (const SlotSpec& ring : rings) earliest = std::max(earliest, earliest_reachable_length(ring, high_water));
  return earliest;
}

Status CacheState::can_reserve(const KvCacheGroup& group, std::int64_t blocks, const char* purpose) const {
  if (blocks <= 0) return {};
  for (const std::int32_t pool : group.pools()) {
    const std::int64_t spare = allocators[static_cast<std::size_t>(pool)].available() - group.reserved_blocks();
    if (spare < blocks) return blocks_short(pool, blocks, purpose);
  }
  return {};
}

// Blocks dropped here but kept alive by another owner come back to no free list, and a shared block
// that becomes the last one will have to be copied: a reservation must be able to afford both.
Status CacheState::can_truncate(std::int32_t slot, std::int32_t length) const {
  const SequenceRecord& record = sequences[slot];
  if (record.reserve_tokens == 0) return {};
  for (const KvCacheGroup& group : groups) {
    const std::int32_t kept = group.blocks(length);
    const std::int32_t shared = shared_after_truncate(group, slot, length);
    const std::int32_t owed = group.outstanding_reservation(record.reserve_tokens, length, shared) -
                              group.outstanding_reservation(record, slot);
    for (std::size_t member = 0; member < group.pools().size(); ++member) {
      const std::int32_t pool = group.pools()[member];
      const BlockAllocator& allocator = allocators[static_cast<std::size_t>(pool)];
      std::int64_t freed = 0;
      for (std::int32_t column = kept; column < group.blocks(record.length); ++column) {
        const BlockId block(group.table_entry(slot, column)[member]);
        freed += allocator.owners(block) == 1 && !allocator.held_by_pin(block) ? 1 : 0;
      }
      if (allocator.available() + freed - group.reserved_blocks() < owed) {
        return blocks_short(pool, owed - freed, "truncate, to keep the sequence's reservation,");
      }
    }
  }
  return {};
}

void CacheState::truncate(std::int32_t slot, std::int32_t length) {
  SequenceRecord& record = sequences[slot];
  if (prefixes != nullptr) prefixes->truncate(slot, length);
  for (KvCacheGroup& group : groups) {
    const std::int32_t old_outstanding = group.outstanding_reservation(record, slot);
    const std::int32_t kept = group.blocks(length);
    const std::int32_t shared = shared_after_truncate(group, slot, length);
    for (std::int32_t column = group.blocks(record.length) - 1; column >= kept; --column) {
      std::int32_t* table_entry = group.table_entry(slot, column);
      for (std::size_t member = 0; member < group.pools().size(); ++member) {
        const std::int32_t pool = group.pools()[member];
        const BlockId block(table_entry[member]);
        BlockAllocator& allocator = allocators[static_cast<std::size_t>(pool)];
        allocator.drop_owner(block);
        const bool freed = allocator.owners(block) == 0 && allocator.prefix_use(block).nodes == 0;
        if (records_freed_blocks && freed) freed_blocks.push_back({pool, block});
        table_entry[member] = 0;
      }
    }
    group.set_shared_prefix_blocks(slot, shared);
    group.set_reserved_blocks(group.reserved_blocks() +
                              group.outstanding_reservation(record.reserve_tokens, length, shared) - old_outstanding);
  }
  record.length = length;
  if (length == 0) record.high_water = 0;
}

// Prefixes may need rows of the last block that the sequence is now before: it must not write there in place.
std::int32_t CacheState::shared_after_truncate(const KvCacheGroup& group, std::int32_t slot,
                                               std::int32_t length) const {
  const std::int32_t kept = group.blocks(length);
  const std::int32_t full = group.full_blocks(length);
  const std::int32_t shared = std::min(group.shared_prefix_blocks(slot), kept);
  if (prefixes == nullptr || kept == full) return shared;
  const BlockId tail(group.table_entry(slot, full)[0]);
  const BlockAllocator& allocator = allocators[static_cast<std::size_t>(group.pools()[0])];
  const std::int32_t row = group.rows(length) - full * group.rows_per_block();
  return allocator.prefix_use(tail).rows > row ? kept : shared;
}

void CacheState::reclaim(const KvCacheGroup& group, std::int64_t blocks) {
  if (prefixes == nullptr) return;
  for (const std::int32_t pool : group.pools()) prefixes->reclaim(*this, pool, blocks);
}

bool CacheState::share_column(const KvCacheGroup& group, std::int32_t slot, std::int32_t other,
                              std::int32_t column) const noexcept {
  return other != slot && sequences[other].live && column < group.blocks(sequences[other].length) &&
         group.table_entry(other, column)[0] == group.table_entry(slot, column)[0];
}

std::int32_t CacheState::owed_for_shared_tail(const KvCacheGroup& group, std::int32_t other, std::int32_t slot,
                                              std::int32_t length) const noexcept {
  const std::int32_t tail = group.full_blocks(length);
  const SequenceRecord& record = sequences[other];
  if (!share_column(group, slot, other, tail) || group.shared_prefix_blocks(other) > tail) return 0;
  return group.outstanding_reservation(record.reserve_tokens, record.length, tail + 1) -
         group.outstanding_reservation(record, other);
}

std::optional<Shortage> CacheState::short_of_sharing(std::int32_t slot, std::int32_t length,
                                                     std::int32_t reserve_tokens) const noexcept {
  for (const KvCacheGroup& group : groups) {
    const std::int32_t held = group.blocks(length);
    std::int64_t owed = group.outstanding_reservation(reserve_tokens, length, held);
    if (held > group.full_blocks(length)) {
      for (std::int32_t other = 0; other < sequences.capacity(); ++other) {
        owed += owed_for_shared_tail(group, other, slot, length);
      }
    }
    for (std::size_t member = 0; member < group.pools().size(); ++member) {
      const auto pool = static_cast<std::size_t>(group.pools()[member]);
      std::int64_t idle = 0;  // blocks that stop being available
      for (std::int32_t column = 0; column < held; ++column) {
        const BlockId block(group.table_entry(slot, column)[member]);
        idle += allocators[pool].owners(block) == 0 && !allocators[pool].held_by_pin(block) ? 1 : 0;
      }
      if (allocators[pool].available() - idle - group.reserved_blocks() < owed) {
        return Shortage{.pool = group.pools()[member], .wanted = owed + idle};
      }
    }
  }
  return {};
}

void CacheState::share_table(std::int32_t slot, std::int32_t length, std::int32_t reserve_tokens) {
  for (KvCacheGroup& group : groups) {
    const std::int32_t held = group.blocks(length);
    const std::int32_t tail = group.full_blocks(length);
    std::int64_t owed = group.outstanding_reservation(reserve_tokens, length, held);
    for (std::int32_t other = 0; held > tail && other < sequences.capacity(); ++other) {
      if (!share_column(group, slot, other, tail)) continue;
      owed += owed_for_shared_tail(group, other, slot, length);
      group.set_shared_prefix_blocks(other, std::max(group.shared_prefix_blocks(other), tail + 1));
    }
    for (std::int32_t column = 0; column < held; ++column) {
      for (std::size_t member = 0; member < group.pools().size(); ++member) {
        const auto pool = static_cast<std::size_t>(group.pools()[member]);
        allocators[pool].add_owner(BlockId(group.table_entry(slot, column)[member]));
      }
    }
    group.set_shared_prefix_blocks(slot, held);
    group.set_reserved_blocks(group.reserved_blocks() + owed);
  }
}

void CacheState::clear_table(std::int32_t slot, std::int32_t length) noexcept {
  for (KvCacheGroup& group : groups) {
    for (std::int32_t column = 0; column < group.blocks(length); ++column) {
      std::fill_n(group.table_entry(slot, column), group.pools().size(), 0);
    }
  }
}

void CacheState::drop_reservation(std::int32_t slot) noexcept {
  for (KvCacheGroup& group : groups) {
    group.set_reserved_blocks(group.reserved_blocks() - group.outstanding_reservation(sequences[slot], slot));
  }
  sequences[slot].reserve_tokens = 0;
}

Status CacheState::blocks_short(std::int32_t pool, std::int64_t needed, const char* purpose) const {
  const auto index = static_cast<std::size_t>(pool);
  const PoolSpec& spec = layout.pools()[index];
  const BlockAllocator& allocator = allocators[index];
  const std::int64_t reserved = group_of(pool).reserved_blocks();
  const std::int64_t missing = needed + reserved - allocator.available();
  return {StatusCode::kResourceExhausted,
          std::string(purpose) + " needs " + std::to_string(needed) + " blocks of " +
              std::string(cache_role_name(spec.role)) + ", layer " + std::to_string(spec.layer.value) + ": " +
              std::to_string(missing) + " blocks (" + std::to_string(missing * spec.shape.block_bytes) +
              " bytes) are missing; " + std::to_string(allocator.available()) + " of " +
              std::to_string(allocator.total()) + " are free, " + std::to_string(reserved) + " of those reserved"};
}

}  // namespace dsv4rt
