// PrefixCache: which units and boundary states are kept, whose they are, and what leaves first. Private to src/cache.
//
// The tree (prefix_tree.h) knows units; this class gives them blocks and states. A unit uses the blocks that hold its
// rows in every pool. Blocks are larger than units in most pools, so units of one path use one block together, and the
// sequence that computed them goes on writing behind them. What keeps them whole is PrefixUse::rows: whoever writes
// below it gets a copy (BlockAllocator::writable).
//
// Invariant, block by block: the units that use a block are consecutive on one path, and siblings of the last of them
// that part behind the block (where blocks are smaller than units: a sequence that goes back a little keeps them). A
// unit that brings another block for rows that its ancestors have too (its sequence had copied the block) takes them
// along, so a path never needs two blocks for the same rows. The `rows` of a block are those of its deepest unit.
//
// Everything is sized when it is made, but for what events and refusals take.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/block_allocator.h"
#include "cache/kv_cache_manager.h"
#include "cache/prefix_identity.h"
#include "cache/prefix_tree.h"
#include "cache/prefix_unit_blocks.h"
#include "cache/step_metadata_writer.h"

namespace dsv4rt {

struct CacheState;

// How a sequence goes along the tree.
struct PrefixTrack {
  PrefixNodeId node = kNoPrefixNode;     // its last whole unit, or its root; none: its tokens are not kept
  std::int32_t pending = 0;              // its tokens after that unit
  std::int32_t prompt_tokens = 0;        // ids that create_sequence was given
  PrefixNodeId rolling = kNoPrefixNode;  // unit whose state is kept until the sequence takes its next one
  PrefixPolicy policy;
};

class PrefixCache {
 public:
  PrefixCache(const CacheState& cache, const PrefixCacheSettings& settings);

  [[nodiscard]] std::int32_t unit_tokens() const noexcept { return tree_.unit_tokens(); }
  [[nodiscard]] const PrefixTree& tree() const noexcept { return tree_; }
  [[nodiscard]] const PrefixTrack& track(std::int32_t slot) const noexcept {
    return tracks_[static_cast<std::size_t>(slot)];
  }

  // ---- Looking up (prefix_cache.cpp). Nothing changes.
  struct Match {
    PrefixNodeId last = kNoPrefixNode;        // deepest unit that is kept, or the root if it is there
    PrefixNodeId with_state = kNoPrefixNode;  // deepest one that a sequence can begin at
  };
  // At most `most_tokens` of the ids.
  [[nodiscard]] Match match(std::span<const std::byte> salt, std::span<const std::int32_t> token_ids,
                            std::int64_t most_tokens);
  // The unit of `length` tokens on the sequence's path, if it has a state; none otherwise.
  [[nodiscard]] PrefixNodeId boundary_on_path(std::int32_t slot, std::int64_t length) const noexcept;
  // The next unit above with a state; none if there is none.
  [[nodiscard]] PrefixNodeId shallower_with_state(PrefixNodeId node) const noexcept;

  // ---- Sequences (prefix_sequences.cpp)
  // The slot's table names the blocks of the node's path; or nothing has changed and it says what is short.
  Status attach(CacheState& cache, std::int32_t slot, PrefixNodeId node, std::int32_t reserve_tokens);
  // From now on the slot's tokens are kept: it continues at `node`, which its table holds.
  void begin(std::int32_t slot, PrefixNodeId node, std::int32_t prompt_tokens, const PrefixPolicy& policy);
  // The root of a salt, made if need be; none when there is no room.
  [[nodiscard]] PrefixNodeId root(CacheState& cache, std::span<const std::byte> salt);
  void copy_track(std::int32_t parent, std::int32_t child);
  // The sequence now ends at `length`; tokens of an uncommitted step are not counted.
  void truncate(std::int32_t slot, std::int64_t length);
  // The sequence ends: the state of its last boundary stays for whoever continues its output.
  void release(std::int32_t slot);
  void count_lookup(std::int64_t hit_tokens, std::int64_t missed_tokens) noexcept;

  // ---- Steps (prefix_steps.cpp)
  // Before anything of a step changes: ids are kept for the commit, boundaries that the rings will not serve after the
  // step get their states.
  void begin_step(CacheState& cache, std::span<const StepEntry> batch, std::span<const StepSegment> segments);
  [[nodiscard]] std::span<const PlannedCapture> captures() const noexcept { return captures_; }
  // The tokens of segment i that stay are part of their sequence: new units enter the tree, boundaries get states.
  void commit_segment(CacheState& cache, std::size_t i, const StepSegment& segment, std::int32_t accepted);
  // No token of the step is kept any more but what commit_segment kept: unused states go back.
  void end_step();
  // A state of the last unit boundary, if the rings serve it.
  void keep_fork_point(CacheState& cache, std::int32_t slot);
  // What the backend must copy out of rings since the last time this was cleared.
  [[nodiscard]] std::span<const BoundaryCopyPlan> boundary_copies() const noexcept { return boundary_copies_; }
  void clear_boundary_copies() noexcept { boundary_copies_.clear(); }
  // The backend could not copy them: they are no states.
  void drop_copied_states();

  // ---- Leaving (prefix_eviction.cpp)
  // Frees cached blocks until the pool has `blocks` free ones. Precondition: available() >= blocks.
  void reclaim(CacheState& cache, std::int32_t pool, std::int64_t blocks);
  Status pin(CacheState& cache, PrefixNodeId node);
  void unpin(CacheState& cache, PrefixNodeId node);
  // Removes the node and whatever above it then has no child, up to the first that is pinned; gives their number.
  std::int32_t evict_branch(CacheState& cache, PrefixNodeId node);
  void evict_all(CacheState& cache);

  [[nodiscard]] PrefixStats stats() const noexcept;
  // Events since the last time this was called with `clear`.
  [[nodiscard]] std::vector<PrefixEventRecord>& events() noexcept { return events_; }

  // Every invariant from scratch, and what the pools must count (prefix_invariants.cpp).
  [[nodiscard]] Status check(const CacheState& cache) const;
  [[nodiscard]] std::vector<PrefixUse> expected_use(const CacheState& cache, std::int32_t pool) const;

 private:
  PrefixNodeId insert(CacheState& cache, std::int32_t slot, PrefixNodeId parent, const PrefixDigest& digest,
                      std::span<const std::int32_t> token_ids);
  void adopt_blocks(CacheState& cache, PrefixNodeId node);
  void leave_block(CacheState& cache, PrefixNodeId node, const UnitBlock& block, std::int32_t id);
  [[nodiscard]] std::int32_t rows_without(const PrefixUse& use, PrefixNodeId node, const UnitBlock& block,
                                          std::int32_t id) const noexcept;
  bool advance(CacheState& cache, std::int32_t slot, std::span<const std::int32_t> unit_ids);
  void change_pins(CacheState& cache, PrefixNodeId node, std::int32_t change);
  bool make_room(CacheState& cache, PrefixNodeId root);
  void evict(CacheState& cache, PrefixNodeId node, PrefixRemoval why);
  void detach(std::int32_t slot);

  [[nodiscard]] std::int32_t take_state();
  void give_state(std::int32_t state) noexcept { free_states_.push_back(state); }
  void set_state(PrefixNodeId node, std::int32_t state, bool kept);
  void drop_state(PrefixNodeId node, PrefixRemoval why);
  bool copy_state(CacheState& cache, std::int32_t slot, PrefixNodeId node, bool kept);
  void roll(PrefixTrack& track, PrefixNodeId node);
  // What the policy says about the boundary after `boundary` tokens of a sequence that reaches `end`.
  enum class Wanted : std::uint8_t { kNo, kUntilTheNext, kKept };
  [[nodiscard]] Wanted wanted(const PrefixTrack& track, std::int64_t boundary, std::int64_t end) const noexcept;
  void settle_state(CacheState& cache, std::size_t segment, std::int32_t slot, std::int64_t boundary, std::int64_t end);
  void note(PrefixEvent::Kind kind, PrefixNodeId node, PrefixRemoval why = PrefixRemoval::kSpace);
  [[nodiscard]] std::int32_t* pending_ids(std::int32_t slot) noexcept {
    return pending_ids_.data() + static_cast<std::size_t>(slot) * static_cast<std::size_t>(tree_.unit_tokens());
  }

  UnitBlocks blocks_;
  PrefixTree tree_;
  PrefixHasher hasher_;
  std::int64_t quota_units_;
  bool records_events_;
  std::vector<PrefixTrack> tracks_;         // [slots]
  std::vector<std::int32_t> pending_ids_;   // [slots][unit_tokens]
  std::vector<std::int32_t> step_ids_;      // [max_step_tokens], in the order of the segments
  std::vector<std::size_t> first_step_id_;  // [segments]; kNotKept for a segment without ids
  std::vector<PlannedCapture> captures_;
  std::vector<BoundaryCopyPlan> boundary_copies_;
  std::vector<std::int32_t> free_states_;
  std::vector<PrefixNodeId> node_of_state_;  // [states]; none while free or not yet any node's
  std::vector<PrefixEventRecord> events_;
  PrefixStats stats_;
};

}  // namespace dsv4rt
