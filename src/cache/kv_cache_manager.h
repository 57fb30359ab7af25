// KVCacheManager: who owns which block, slot and row. It decides ids and never touches cache bytes.
//
// A step is a transaction:   prepare_forward -> (backend runs the step) -> commit or rollback.
// One step may be outstanding; every other mutation is refused meanwhile.
//
// Invariants, after every operation, in every pool:
//   free + live = blocks - 1        (block 0, the null block, is never handed out)
//   a block's reference count = the number of sequences whose table holds it
//   a sequence of L tokens holds exactly ceil((L / ratio) / rows_per_block) blocks
//   free >= blocks still owed to sequences that were created with a reservation
// While a step is outstanding, L includes its tokens. docs/cache.md explains the rules behind them.
//
// Not thread-safe: one thread (the scheduler) owns it. After create() only texts of refusals, record_freed_blocks()
// and the questions that return vectors allocate; where memory for these is short, std::bad_alloc leaves the call
// and nothing has changed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/memory_plan.h"
#include "dsv4rt/model.h"
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
  std::int64_t reserved = 0;  // owed to sequences with reservations, part of free
};

class KVCacheManager {
 public:
  // Takes all host memory it will ever need.
  static Result<std::unique_ptr<KVCacheManager>> create(const LayerSchedule& schedule, const CacheLayout& layout,
                                                        const MemoryPlan& plan);
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
  // A sequence of `length` tokens whose content the caller brings: it holds the blocks that so many
  // tokens need, none of them shared. Before the next step the caller writes the block-table rows of
  // its slot, the rows of the blocks and, in every ring, positions [first_needed_position(length),
  // length). Tokens below `length` can be dropped as after a rejected step: only as far as these
  // positions serve. reserve_tokens and errors as for create_sequence.
  Result<SequenceId> restore_sequence(std::int64_t length, std::int64_t reserve_tokens = 0);

  // Tokens, those of an outstanding step included.
  [[nodiscard]] Result<std::int64_t> length(SequenceId sequence) const;
  [[nodiscard]] Result<StateSlotId> slot(SequenceId sequence) const;
  // The least L such that truncate accepts every length from L on; 0 is accepted anyway.
  [[nodiscard]] Result<std::int64_t> earliest_truncation(SequenceId sequence) const;
  // The sequence's blocks in one pool, in row order.
  [[nodiscard]] Result<std::vector<BlockId>> blocks(SequenceId sequence, int pool) const;

  // Appends tokens to sequences: the only place that allocates blocks. All or nothing: on any error
  // (stale id, duplicate sequence, non-positive count, over a limit, blocks short in a pool) nothing
  // has changed. Each sequence may appear once. Of sequences that share a last block and are all in
  // the batch, the last one writes it in place: block copies come before any write of the step.
  Result<StepPlan> prepare_forward(std::span<const StepEntry> batch, const StepOptions& options = {});
  // Ends the step. accepted[i] in [0, tokens of entry i]: how many of the entry's tokens stay; the
  // rest are rolled back. Rejecting more than the draft budget is refused (kInvalidArgument) unless
  // the entry keeps everything its rings need. Empty span: all accepted.
  Status commit(std::uint64_t serial, std::span<const std::int32_t> accepted = {});
  // Ends the step without any of its tokens; refused (kFailedPrecondition) for another serial only, otherwise it
  // cannot fail. A step that was only prepared leaves no trace: even the free lists are as before prepare_forward.
  // After one that was started, blocks that were copied stay the sequence's own, and a sequence goes back to its
  // length unless the rings were overwritten beyond what that length needs. It is then emptied and, because its
  // reservation may not be affordable any more when a fork keeps its blocks, has none afterwards. Gives the sequences
  // that were emptied, in batch order; valid until the next rollback.
  Result<std::span<const SequenceId>> rollback(std::uint64_t serial, StepProgress progress);

  [[nodiscard]] const StepOffsets& step_offsets() const noexcept;
  [[nodiscard]] PoolUsage usage(int pool) const;
  // From now on freed_blocks() tells which blocks the last call of commit, rollback, truncate or release
  // gave back. Takes the memory for it: one entry for every block there is.
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
