// CacheState: the bookkeeping that KVCacheManager's operations work on. Private to src/cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache/block_allocator.h"
#include "cache/cache_layout.h"
#include "cache/kv_cache_group.h"
#include "cache/kv_cache_manager.h"
#include "cache/memory_plan.h"
#include "cache/prefix_cache.h"
#include "cache/sequence_table.h"
#include "cache/step_metadata_writer.h"

namespace dsv4rt {

// A shared last block that a step replaces by a copy of its own.
struct StagedCopy {
  std::int32_t slot = 0;
  std::int32_t group = 0;
  std::int32_t member = 0;
  std::int32_t column = 0;
  std::int32_t source = 0;
  std::int32_t target = 0;
  bool held = false;  // only prefixes have the source besides: it keeps an owner until the copies' targets are taken
};

// A pool that cannot give what is asked of it.
struct Shortage {
  std::int32_t pool = 0;
  std::int64_t wanted = 0;  // blocks
};

// What prepare_forward changed, so that rollback can change it back. Vectors keep their capacity.
struct OutstandingStep {
  bool active = false;
  std::uint64_t serial = 0;
  std::vector<StepSegment> segments;              // one for each entry of the batch, in its order
  std::vector<std::int32_t> old_high_water;       // [segments]
  std::vector<std::int32_t> old_shared_blocks;    // [groups][max_sequences], by segment
  std::vector<std::int64_t> old_reserved_blocks;  // [groups]
  std::vector<StagedCopy> copies;                 // listed in the order in which their targets were taken
  std::vector<SequenceId> emptied;                // sequences that the last rollback emptied
};

struct CacheState {
  CacheLayout layout;
  CacheLimits limits;
  std::vector<BlockAllocator> allocators;  // index: pool id
  std::vector<KvCacheGroup> groups;
  std::vector<std::int32_t> group_of_pool;
  std::vector<SlotSpec> rings;  // one of each kind that limits rollback
  SequenceTable sequences;
  StepMetadataWriter metadata;
  OutstandingStep step;
  std::unique_ptr<PrefixCache> prefixes;  // null without a prefix cache
  bool records_freed_blocks = false;
  std::vector<FreedBlock> freed_blocks;  // blocks that the last call that changed anything gave back

  // Scratch of prepare_forward, sized at creation.
  std::vector<std::uint64_t> seen_in_batch;  // [slots] number of the last batch that named the slot
  std::uint64_t batch_number = 0;
  // One table entry that a step fills: a new block for every pool of the group.
  struct NewEntry {
    std::int32_t* blocks = nullptr;  // [members]
    std::int32_t slot = 0;
    std::int32_t column = 0;
  };
  std::vector<NewEntry> new_entries;         // group by group
  std::vector<std::size_t> first_new_entry;  // [groups + 1]
  std::vector<std::int64_t> copied_blocks;   // [pools]
  std::vector<std::int64_t> reserved_after;  // [groups]

  [[nodiscard]] std::int64_t new_entries_of(std::size_t group) const noexcept {
    return static_cast<std::int64_t>(first_new_entry[group + 1] - first_new_entry[group]);
  }

  // Takes all memory; throws std::bad_alloc or std::length_error. Arguments are checked by the caller.
  CacheState(const LayerSchedule& schedule, const CacheLayout& cache_layout, const MemoryPlan& plan,
             const StepCapacity& capacity, const PrefixCacheSettings& prefix_settings,
             const HandleOrigin& handles = {});

  // The shortest length > 0 that a sequence with this high water can be cut to; 0: any.
  [[nodiscard]] std::int64_t earliest_length(std::int32_t high_water) const noexcept;
  // Whether rings that were written up to high_water still serve a sequence of `length`.
  [[nodiscard]] bool reachable(std::int64_t length, std::int32_t high_water) const noexcept {
    return length == 0 || length >= earliest_length(high_water);
  }
  [[nodiscard]] const KvCacheGroup& group_of(std::int32_t pool) const noexcept {
    return groups[static_cast<std::size_t>(group_of_pool[static_cast<std::size_t>(pool)])];
  }
  // Makes room in every pool of the group for `blocks` that are available.
  void reclaim(const KvCacheGroup& group, std::int64_t blocks);
  // Whether every pool of the group can set `blocks` more aside; `purpose` is for the message.
  [[nodiscard]] Status can_reserve(const KvCacheGroup& group, std::int64_t blocks, const char* purpose) const;
  // Whether the sequence's reservation survives truncate(slot, length).
  [[nodiscard]] Status can_truncate(std::int32_t slot, std::int32_t length) const;
  // Cuts a sequence, frees the blocks beyond `length` and settles its reservation.
  void truncate(std::int32_t slot, std::int32_t length);
  // Leading blocks of the sequence that others may own too, or prefixes need whole, once it is cut to `length`.
  [[nodiscard]] std::int32_t shared_after_truncate(const KvCacheGroup& group, std::int32_t slot,
                                                   std::int32_t length) const;
  // A free slot's table names the blocks of a sequence of `length` that others have, without owning them yet. What is
  // short if it does: reservations must hold although cached blocks among them stop being available, the last block may
  // have to be copied, and reserve_tokens are set aside.
  [[nodiscard]] std::optional<Shortage> short_of_sharing(std::int32_t slot, std::int32_t length,
                                                         std::int32_t reserve_tokens) const noexcept;
  // It does: owners, sharing and reservations follow. Cannot fail if nothing is short.
  void share_table(std::int32_t slot, std::int32_t length, std::int32_t reserve_tokens);
  // It does not.
  void clear_table(std::int32_t slot, std::int32_t length) noexcept;
  // Whether the live sequence in `other` holds the block that the table of `slot` names in the column.
  [[nodiscard]] bool share_column(const KvCacheGroup& group, std::int32_t slot, std::int32_t other,
                                  std::int32_t column) const noexcept;
  // What the sequence in `other` owes more once somebody else owns the last block of a table of `length`.
  [[nodiscard]] std::int32_t owed_for_shared_tail(const KvCacheGroup& group, std::int32_t other, std::int32_t slot,
                                                  std::int32_t length) const noexcept;
  // Nothing is set aside for the sequence any more.
  void drop_reservation(std::int32_t slot) noexcept;
  // kResourceExhausted naming role, layer, blocks and bytes.
  [[nodiscard]] Status blocks_short(std::int32_t pool, std::int64_t needed, const char* purpose) const;
  // Every invariant from scratch; kInternal naming the first that is broken.
  [[nodiscard]] Status check() const;
};

// Whether the three belong together and the plan's numbers can be ids and positions
// (kInvalidArgument naming field, value and what is accepted).
Status check_cache_plan(const LayerSchedule& schedule, const CacheLayout& layout, const MemoryPlan& plan);

// What stage_blocks would find short for these segments, without an outstanding step's.
[[nodiscard]] std::optional<PoolShortage> shortage_of_step(const CacheState& state,
                                                           std::span<const StepSegment> segments);
// Takes the blocks that state.step.segments need, or changes nothing and says what is short.
Status stage_blocks(CacheState& state);
// Gives back what stage_blocks took; blocks and reservations are as before it.
void rollback_blocks(CacheState& state);

}  // namespace dsv4rt
