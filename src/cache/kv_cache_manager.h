// KVCacheManager: who owns which block, slot and row. It decides ids and never touches cache bytes.
//
// A step is a transaction:   prepare_forward -> (backend runs the step) -> commit or rollback.
// One step may be outstanding; every other mutation is refused meanwhile.
//
// Invariants, after every operation, in every pool:
//   free + live + cached + pinned = blocks - 1   (block 0, the null block, is never handed out)
//   a block's reference count = the number of sequences whose table holds it
//   a sequence of L tokens holds exactly ceil((L / ratio) / rows_per_block) blocks
//   free + cached >= blocks still owed to sequences that were created with a reservation
// While a step is outstanding, L includes its tokens. docs/cache.md explains the rules behind them.
//
// Not thread-safe: one thread (the scheduler) owns it. After create() only texts of refusals, record_freed_blocks()
// and the questions that return vectors allocate; where memory for these is short, std::bad_alloc leaves the call
// and nothing has changed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/handle_origin.h"
#include "cache/memory_plan.h"
#include "dsv4rt/model.h"
#include "dsv4rt/prefix_cache.h"
#include "dsv4rt/step.h"
#include "dsv4rt/types.h"
#include "step/step_metadata.h"

namespace dsv4rt {

// A prepared step. The metadata bytes belong to the manager and stay valid until the next
// prepare_forward.
struct StepPlan {
  std::uint64_t serial = 0;  // names this step in commit and rollback
  StepHeader counts{};
  std::span<const std::byte> metadata;  // packed buffer, StepOffsets of the manager
};

// How far a step had come when it was rolled back.
enum class StepProgress : std::uint8_t {
  kPrepared,  // the backend has done nothing for it
  kStarted,   // deltas and block copies were applied, and any of its rows may have been written
};

// What the backend must do when a sequence is forked: duplicate the slot's rings and the block-table rows
// from `source` to `target`, before the next step.
struct ForkResult {
  SequenceId child;
  StateSlotId source;
  StateSlotId target;
};

// A block that has no owner any more; its bytes mean nothing.
struct FreedBlock {
  std::int32_t pool = 0;
  BlockId block;
};

struct PoolUsage {
  std::int64_t total = 0;  // blocks, null block excluded
  std::int64_t free = 0;
  std::int64_t live = 0;      // reference count > 0
  std::int64_t cached = 0;    // kept by prefixes alone, to be had when blocks are short
  std::int64_t pinned = 0;    // kept by pinned prefixes alone
  std::int64_t reserved = 0;  // owed to sequences with reservations, part of free and cached
};

// What a sequence has of the cache.
struct SequenceUsage {
  StateSlotId slot;
  std::int64_t length = 0;
  std::int64_t reserve_tokens = 0;
  std::int64_t earliest_truncation = 0;
};

// A pool that cannot give what a step asks of it.
struct PoolShortage {
  std::int32_t pool = 0;
  std::int64_t missing_blocks = 0;  // for the whole step
  std::int32_t entry = 0;           // first whose blocks are not there; those before it alone would fit
};

// The prefix cache, on if MemoryPlan::limits has boundary states.
struct PrefixCacheSettings {
  PrefixDigest engine{};  // PrefixHasher::engine_digest: what all prefixes have in common
  PrefixPolicy policy;
  PrefixEviction eviction = PrefixEviction::kUseful;
  std::int64_t tenant_quota_tokens = 0;
  bool record_events = false;
};

// A boundary state and the slot whose rings it is copied from or to. The rows are those of CacheLayout::boundary().
struct BoundaryCopyPlan {
  std::int32_t slot = 0;
  std::int32_t state = 0;
  std::int32_t boundary = 0;
};

// A boundary that a step passes and whose rows no ring will hold afterwards. Those before `start` are in the rings
// until the step begins, the others are what the layers compute.
struct PlannedCapture {
  std::int32_t segment = 0;  // number of the sequence in the step's metadata
  std::int32_t slot = 0;
  std::int32_t start = 0;
  std::int32_t boundary = 0;
  std::int32_t state = 0;
};

// A sequence that begins with tokens. With hit_tokens > 0 the backend must, before the next step, write the
// block-table rows of its slot (table_row) and copy the boundary state into its rings.
struct PrefixStart {
  SequenceId sequence;
  std::int64_t hit_tokens = 0;
  BoundaryCopyPlan restore{};  // meaningless without a hit
};

// PrefixEvent as it is recorded; token ids are still the node's unless it left since.
struct PrefixEventRecord {
  PrefixEvent::Kind kind = PrefixEvent::Kind::kUnitStored;
  PrefixRemoval removal = PrefixRemoval::kSpace;
  std::int32_t node = 0;
  std::int64_t end_tokens = 0;
  PrefixDigest digest{};
  PrefixDigest parent{};
};

// Tokens that turn out not to be a sequence's.
struct LateRejection {
  SequenceId sequence;
  std::int32_t tokens = 0;
};

class KVCacheManager {
 public:
  // Takes all host memory it will ever need.
  static Result<std::unique_ptr<KVCacheManager>> create(const LayerSchedule& schedule, const CacheLayout& layout,
                                                        const MemoryPlan& plan,
                                                        const PrefixCacheSettings& prefixes = {},
                                                        const HandleOrigin& handles = {});
  ~KVCacheManager();
  KVCacheManager(const KVCacheManager&) = delete;
  KVCacheManager& operator=(const KVCacheManager&) = delete;

  // An empty sequence. With reserve_tokens > 0 every pool sets aside the blocks that so many tokens
  // need in the worst case, so that appends up to there cannot fail; kResourceExhausted names role,
  // layer, blocks and bytes that are missing, and nothing changes.
  Result<SequenceId> create_sequence(std::int64_t reserve_tokens = 0);
  // Whether create_sequence(tokens) would succeed now: admission looks at every role.
  [[nodiscard]] Status can_admit(std::int64_t tokens) const;
  // A second sequence with the same content; blocks are shared, copied when first written.
  Result<ForkResult> fork(SequenceId parent, std::int64_t reserve_tokens = 0);
  // What fork would answer now; changes nothing. A backend may fill the target's slot before the fork is made.
  [[nodiscard]] Result<ForkResult> can_fork(SequenceId parent, std::int64_t reserve_tokens = 0) const;
  // Drops tokens from the end. Allowed to 0, or as far back as every ring still holds what the
  // remaining tokens need; otherwise kFailedPrecondition naming the earliest length possible. With a
  // reservation, kResourceExhausted when dropped blocks stay with another owner and cannot be
  // replaced; nothing changes then.
  Status truncate(SequenceId sequence, std::int64_t new_length);
  Status release(SequenceId sequence);
  // Drops all tokens and the reservation: the sequence is as create_sequence() would make it. Fails for a stale id and
  // during a step only.
  Status clear_sequence(SequenceId sequence);
  // A sequence of `length` tokens whose content the caller brings: it holds the blocks that so many
  // tokens need, none of them shared. Before the next step the caller writes the block-table rows of
  // its slot, the rows of the blocks and, in every ring, positions [first_needed_position(length),
  // length). Tokens below `length` can be dropped as after a rejected step: only as far as these
  // positions serve. reserve_tokens and errors as for create_sequence.
  Result<SequenceId> restore_sequence(std::int64_t length, std::int64_t reserve_tokens = 0);
  // More content for such a sequence, before its first step: it now has `length` tokens, and the rules are those of
  // restore_sequence, the rings' positions included.
  Status extend_restored(SequenceId sequence, std::int64_t length);

  // Tokens, those of an outstanding step included.
  [[nodiscard]] Result<std::int64_t> length(SequenceId sequence) const;
  [[nodiscard]] Result<StateSlotId> slot(SequenceId sequence) const;
  // The least L such that truncate accepts every length from L on; 0 is accepted anyway.
  [[nodiscard]] Result<std::int64_t> earliest_truncation(SequenceId sequence) const;
  [[nodiscard]] Result<SequenceUsage> sequence_usage(SequenceId sequence) const;
  // Blocks that a sequence of so many tokens holds in one pool.
  [[nodiscard]] std::int64_t blocks_of_length(std::int64_t length, int pool) const;
  // The sequence's blocks in one pool, in row order.
  [[nodiscard]] Result<std::vector<BlockId>> blocks(SequenceId sequence, int pool) const;

  // ---- Prefix cache (docs/cache.md). Without one these are kFailedPrecondition; token ids are checked not to be
  // negative (kInvalidArgument naming the first that is).

  // A sequence that begins with what is cached of these tokens, at most all but the last: that one has to be run. Its
  // further tokens are cached as steps bring their ids. If blocks for a long hit cannot be had, it is a shorter one.
  Result<PrefixStart> create_sequence(std::span<const std::int32_t> token_ids, const SequenceOptions& options);
  // A sequence that begins with the first `length` tokens of another, if a boundary state is kept there
  // (kFailedPrecondition naming the boundaries around it otherwise).
  Result<PrefixStart> branch(SequenceId parent, std::int64_t length, std::int64_t reserve_tokens = 0);
  // Cuts a sequence to a length that has a boundary state, wherever its rings are. The backend must copy the state into
  // them before the next step. Errors as for truncate and branch.
  Result<BoundaryCopyPlan> truncate_to_boundary(SequenceId sequence, std::int64_t new_length);
  // What create_sequence would find. Changes nothing.
  [[nodiscard]] Result<PrefixLookup> prefix_lookup(std::span<const std::int32_t> token_ids,
                                                   std::span<const std::byte> salt) const;
  // Keeps the longest prefix of these tokens that a sequence can begin with, until it is unpinned as often; gives its
  // tokens, 0 if there is none. kResourceExhausted when reservations count on its blocks.
  Result<std::int64_t> pin_prefix(std::span<const std::int32_t> token_ids, std::span<const std::byte> salt);
  // Undoes one pin_prefix of the longest pinned prefix of these tokens; gives its tokens, 0 if there is none.
  Result<std::int64_t> unpin_prefix(std::span<const std::int32_t> token_ids, std::span<const std::byte> salt);
  // Removes units from the end of what is cached of these tokens, up to the first that is pinned or that other prefixes
  // share; gives the tokens removed. Sequences keep what they hold.
  Result<std::int64_t> evict_prefix(std::span<const std::int32_t> token_ids, std::span<const std::byte> salt);
  // Removes everything that is not pinned.
  Status clear_prefixes();
  // 0 without a prefix cache: the shortest prefix that can hit.
  [[nodiscard]] std::int64_t prefix_unit_tokens() const noexcept;
  [[nodiscard]] PrefixStats prefix_stats() const;
  // States that the outstanding step's layers and rings must fill.
  [[nodiscard]] std::span<const PlannedCapture> captures() const noexcept;
  // States to be copied out of rings that the last call of commit or fork decided on, after all earlier work and before
  // any later step. A copy that fails must be taken back by drop_boundary_copies.
  [[nodiscard]] std::span<const BoundaryCopyPlan> boundary_copies() const noexcept;
  void drop_boundary_copies();
  // Block ids of a sequence, pool after pool; columns[p] of them for pool p. Sizes: MemoryPlan::table_row_bytes, pools.
  // Gives the number of ids.
  std::size_t table_row(StateSlotId slot, std::span<std::int32_t> ids, std::span<std::int32_t> columns) const;
  // What came and went since take_prefix_events was called; with PrefixCacheSettings::record_events.
  [[nodiscard]] std::span<const PrefixEventRecord> prefix_events() const noexcept;
  [[nodiscard]] std::span<const std::int32_t> event_token_ids(const PrefixEventRecord& event) const noexcept;
  void clear_prefix_events() noexcept;

  // Appends tokens to sequences: the only place that allocates blocks. All or nothing: on any error
  // (stale id, duplicate sequence, non-positive count, over a limit, blocks short in a pool) nothing
  // has changed. Each sequence may appear once. Of sequences that share a last block and are all in
  // the batch, the last one writes it in place: block copies come before any write of the step.
  Result<StepPlan> prepare_forward(std::span<const StepEntry> batch, const StepOptions& options = {});
  // What blocks prepare_forward of such a batch would lack now, of all pools that in which the earliest entry fails;
  // nothing if it would succeed. Errors: those of prepare_forward but for blocks. May be asked while a step is
  // outstanding: as if all its tokens were accepted. Changes nothing; takes memory.
  [[nodiscard]] Result<std::optional<PoolShortage>> step_shortage(std::span<const StepEntry> batch,
                                                                  const StepOptions& options = {}) const;
  // Ends the step. accepted[i] in [0, tokens of entry i]: how many of the entry's tokens stay; the
  // rest are rolled back. Rejecting more than the draft budget is refused (kInvalidArgument) unless
  // the entry keeps everything its rings need. Empty span: all accepted.
  Status commit(std::uint64_t serial, std::span<const std::int32_t> accepted = {});
  // Takes tokens back of a step that was committed whole, at most draft budget + 1 of each of its sequences, which have
  // not been changed since but by the step that may be outstanding. That one must have been started, with positions
  // that are lower by what is rejected: it becomes a step that began there. All or nothing; kInvalidArgument for tokens
  // that the rings or the sequence do not have, kFailedPrecondition with a prefix cache, which counts on commits.
  Status reject_late(std::span<const LateRejection> rejections);
  // Ends the step without any of its tokens; refused (kFailedPrecondition) for another serial only, otherwise it
  // cannot fail. A step that was only prepared leaves no trace: even the free lists are as before prepare_forward.
  // After one that was started, blocks that were copied stay the sequence's own, and a sequence goes back to its
  // length unless the rings were overwritten beyond what that length needs. It is then emptied and, because its
  // reservation may not be affordable any more when a fork keeps its blocks, has none afterwards. Gives the sequences
  // that were emptied, in batch order; valid until the next rollback.
  Result<std::span<const SequenceId>> rollback(std::uint64_t serial, StepProgress progress);

  [[nodiscard]] const StepOffsets& step_offsets() const noexcept;
  [[nodiscard]] PoolUsage usage(int pool) const;
  // From now on freed_blocks() tells which blocks the last call that changed anything gave back. Takes the memory for
  // it: one entry for every block there is.
  void record_freed_blocks();
  [[nodiscard]] std::span<const FreedBlock> freed_blocks() const noexcept;
  [[nodiscard]] std::int32_t live_sequences() const noexcept;
  [[nodiscard]] std::int32_t table_stride(int pool) const;  // columns of the pool's device block table
  // Verifies every invariant from scratch; kInternal naming the first that is broken.
  [[nodiscard]] Status check_invariants() const;

 private:
  KVCacheManager();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv4rt
