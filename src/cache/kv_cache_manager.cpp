// The life of cache blocks and slots, in the order in which a sequence goes through it:
// create_sequence -> (prepare_forward -> commit | rollback)* -> fork, truncate -> release.
// Taking a step's blocks is in step_staging.cpp, the counts behind it in kv_cache_group.h.
#include "cache/kv_cache_manager.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/check.h"
#include "cache/kv_cache_manager_impl.h"

namespace dsv4rt {
KVCacheManager::KVCacheManager() = default;
KVCacheManager::~KVCacheManager() = default;

Result<std::unique_ptr<KVCacheManager>> KVCacheManager::create(const LayerSchedule& schedule, const CacheLayout& layout,
                                                               const MemoryPlan& plan,
                                                               const PrefixCacheSettings& prefixes,
                                                               const HandleOrigin& handles) {
  if (Status status = check_cache_plan(schedule, layout, plan); !status.ok()) return status;
  Result<StepCapacity> capacity = step_capacity(schedule, layout, plan.limits);
  if (!capacity) return capacity.status();
  try {
    std::unique_ptr<KVCacheManager> manager(new KVCacheManager());
    manager->impl_ = std::make_unique<Impl>(schedule, layout, plan, *capacity, prefixes, handles);
    manager->impl_->prefix_policy = prefixes.policy;
    return manager;
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  return Status(StatusCode::kResourceExhausted,
                "host memory for the bookkeeping of " + std::to_string(plan.limits.max_sequences) + " sequences of " +
                    std::to_string(plan.limits.max_context_tokens) + " tokens is not available");
}

// ---- A sequence begins --------------------------------------------------------------------------

Status KVCacheManager::Impl::can_begin(const char* operation, std::int64_t length, std::int64_t reserve_tokens) const {
  if (Status status = no_step_outstanding(operation); !status.ok()) return status;
  if (length < 0 || length > limits.max_context_tokens) {
    return invalid(std::string(operation) + ": length = " + std::to_string(length) + "; accepted: 0 .. " +
                   std::to_string(limits.max_context_tokens) + " (max_context_tokens)");
  }
  if (Status status = check_reserve(reserve_tokens); !status.ok()) return status;
  if (Status status = slot_free(); !status.ok()) return status;
  const auto tokens = static_cast<std::int32_t>(std::max(length, reserve_tokens));
  for (const KvCacheGroup& group : groups) {
    if (Status status = can_reserve(group, group.blocks(tokens), operation); !status.ok()) return status;
  }
  return {};
}

void KVCacheManager::Impl::take_blocks(KvCacheGroup& group, std::int32_t slot, std::int32_t first, std::int32_t end) {
  for (std::int32_t column = first; column < end; ++column) {
    std::int32_t* table_entry = group.table_entry(slot, column);
    for (std::size_t member = 0; member < group.pools().size(); ++member) {
      table_entry[member] = allocators[static_cast<std::size_t>(group.pools()[member])].allocate().value;
    }
  }
}

// No block is shared: the sequence owes what its reservation asks for beyond its length.
Result<SequenceId> KVCacheManager::Impl::begin_sequence(const char* operation, std::int64_t length,
                                                        std::int64_t reserve_tokens) {
  if (Status status = can_begin(operation, length, reserve_tokens); !status.ok()) return status;
  for (const KvCacheGroup& group : groups) reclaim(group, group.blocks(static_cast<std::int32_t>(length)));
  const std::int32_t slot = sequences.acquire();
  SequenceRecord& record = sequences[slot];
  record.length = static_cast<std::int32_t>(length);
  // The rings are as full as after a step of which every token was rejected: they serve `length`.
  record.high_water = length == 0 ? 0 : record.length + layout.formats().draft_budget_tokens + 1;
  record.reserve_tokens = static_cast<std::int32_t>(reserve_tokens);
  for (KvCacheGroup& group : groups) {
    take_blocks(group, slot, 0, group.blocks(record.length));
    group.set_reserved_blocks(group.reserved_blocks() + group.outstanding_reservation(record, slot));
  }
  return sequences.id(slot);
}

Status KVCacheManager::can_admit(std::int64_t tokens) const {
  return impl_->can_begin("create_sequence", 0, tokens);
}

Result<SequenceId> KVCacheManager::create_sequence(std::int64_t reserve_tokens) {
  impl_->freed_blocks.clear();
  return impl_->begin_sequence("create_sequence", 0, reserve_tokens);
}

Result<SequenceId> KVCacheManager::restore_sequence(std::int64_t length, std::int64_t reserve_tokens) {
  impl_->freed_blocks.clear();
  return impl_->begin_sequence("restore_sequence", length, reserve_tokens);
}

Status KVCacheManager::extend_restored(SequenceId sequence, std::int64_t length) {
  Impl& state = *impl_;
  state.freed_blocks.clear();
  if (Status status = state.no_step_outstanding("extend_restored"); !status.ok()) return status;
  const std::int32_t slot = state.sequences.find(sequence);
  if (slot == SequenceTable::kNone) return state.sequences.stale(sequence);
  SequenceRecord& record = state.sequences[slot];
  if (length < record.length || length > state.limits.max_context_tokens) {
    return invalid("extend_restored: length = " + std::to_string(length) +
                   "; accepted: " + std::to_string(record.length) + " (the present one) .. " +
                   std::to_string(state.limits.max_context_tokens) + " (max_context_tokens)");
  }
  const auto tokens = static_cast<std::int32_t>(length);
  // Of the new blocks, those that the reservation does not cover.
  for (const KvCacheGroup& group : state.groups) {
    const std::int32_t covered = std::max(group.blocks(record.length), group.blocks(record.reserve_tokens));
    const std::int32_t beyond = std::max(0, group.blocks(tokens) - covered);
    if (Status status = state.can_reserve(group, beyond, "extend_restored"); !status.ok()) return status;
  }
  for (KvCacheGroup& group : state.groups) {
    const std::int32_t held = group.blocks(record.length);
    DSV4RT_CHECK(group.shared_prefix_blocks(slot) == 0);
    state.reclaim(group, group.blocks(tokens) - held);
    const std::int64_t owed = group.outstanding_reservation(record, slot);
    state.take_blocks(group, slot, held, group.blocks(tokens));
    const std::int64_t still_owed = group.outstanding_reservation(record.reserve_tokens, tokens, 0);
    group.set_reserved_blocks(group.reserved_blocks() - owed + still_owed);
  }
  record.length = tokens;
  record.high_water = tokens == 0 ? 0 : tokens + state.layout.formats().draft_budget_tokens + 1;
  return {};
}

// ---- A step -------------------------------------------------------------------------------------

Status KVCacheManager::Impl::resolve_entry(const StepEntry& entry, std::vector<StepSegment>& segments) {
  const std::int32_t slot = sequences.find(entry.sequence);
  if (slot == SequenceTable::kNone) return sequences.stale(entry.sequence);
  const auto name = [&] { return "step: sequence index " + std::to_string(entry.sequence.index); };
  if (std::exchange(seen_in_batch[static_cast<std::size_t>(slot)], batch_number) == batch_number) {
    return invalid(name() + " appears twice; accepted: once in a batch");
  }
  if (entry.tokens < 1) {
    return invalid(name() + ": tokens = " + std::to_string(entry.tokens) + "; accepted: 1 or more");
  }
  const std::int32_t length = sequences[slot].length;
  if (entry.tokens > limits.max_context_tokens - length) {
    return invalid(name() + ": tokens = " + std::to_string(entry.tokens) + " after " + std::to_string(length) +
                   "; accepted: up to max_context_tokens = " + std::to_string(limits.max_context_tokens) + " together");
  }
  if (prefixes != nullptr && entry.token_ids != nullptr) {
    const std::span<const std::int32_t> ids(entry.token_ids, static_cast<std::size_t>(entry.tokens));
    const auto wrong = std::find_if(ids.begin(), ids.end(), [](std::int32_t id) { return id < 0; });
    if (wrong != ids.end()) {
      return invalid(name() + ": token_ids[" + std::to_string(wrong - ids.begin()) + "] = " + std::to_string(*wrong) +
                     "; accepted: 0 or more");
    }
  }
  segments.push_back({.slot = slot, .start = length, .tokens = entry.tokens});
  return {};
}

Status KVCacheManager::Impl::resolve_batch(std::span<const StepEntry> batch, const StepOptions& options,
                                           std::vector<StepSegment>& segments, std::int32_t* rows) {
  if (batch.empty() || batch.size() > static_cast<std::size_t>(limits.max_sequences)) {
    return invalid("step: " + std::to_string(batch.size()) + " sequences; accepted: 1 .. " +
                   std::to_string(limits.max_sequences) + " (max_sequences)");
  }
  segments.clear();
  ++batch_number;
  std::int64_t tokens = 0;
  for (const StepEntry& entry : batch) {
    if (Status status = resolve_entry(entry, segments); !status.ok()) return status;
    tokens += entry.tokens;
  }
  if (tokens > limits.max_step_tokens) {
    return invalid("step: " + std::to_string(tokens) +
                   " tokens; accepted: up to max_step_tokens = " + std::to_string(limits.max_step_tokens));
  }
  const std::int32_t padded = options.pad_to_tokens;
  if (padded != 0 && (padded < tokens || padded > limits.max_step_tokens)) {
    return invalid("step: pad_to_tokens = " + std::to_string(padded) + "; accepted: 0, or " + std::to_string(tokens) +
                   " (the step's tokens) .. " + std::to_string(limits.max_step_tokens) + " (max_step_tokens)");
  }
  *rows = padded != 0 ? padded : static_cast<std::int32_t>(tokens);
  return {};
}

Result<StepPlan> KVCacheManager::prepare_forward(std::span<const StepEntry> batch, const StepOptions& options) {
  Impl& state = *impl_;
  state.freed_blocks.clear();
  if (Status status = state.no_step_outstanding("prepare_forward"); !status.ok()) return status;
  std::int32_t rows = 0;
  if (Status status = state.resolve_batch(batch, options, state.step.segments, &rows); !status.ok()) return status;
  if (Status status = stage_blocks(state); !status.ok()) return status;

  OutstandingStep& step = state.step;
  if (state.prefixes != nullptr) state.prefixes->begin_step(state, batch, step.segments);
  for (std::size_t i = 0; i < step.segments.size(); ++i) {
    SequenceRecord& record = state.sequences[step.segments[i].slot];
    step.old_high_water[i] = record.high_water;
    record.length += step.segments[i].tokens;
    record.high_water = std::max(record.high_water, record.length);
  }
  step.active = true;
  ++step.serial;
  state.metadata.finish(step.segments, rows);
  return StepPlan{.serial = step.serial, .counts = state.metadata.counts(), .metadata = state.metadata.bytes()};
}

Status KVCacheManager::Impl::check_accepted(std::span<const std::int32_t> accepted) const {
  if (accepted.size() != step.segments.size()) {
    return invalid("commit: accepted has " + std::to_string(accepted.size()) +
                   " entries; accepted: none, or the step's " + std::to_string(step.segments.size()));
  }
  for (std::size_t i = 0; i < accepted.size(); ++i) {
    const StepSegment& segment = step.segments[i];
    const std::string_view field = "commit: accepted[";
    if (accepted[i] < 0 || accepted[i] > segment.tokens) {
      return invalid(std::string(field) + std::to_string(i) + "] = " + std::to_string(accepted[i]) +
                     "; accepted: 0 .. " + std::to_string(segment.tokens));
    }
    if (accepted[i] == segment.tokens) continue;
    const std::int32_t high_water = sequences[segment.slot].high_water;
    if (!reachable(segment.start + accepted[i], high_water)) {
      return invalid(std::string(field) + std::to_string(i) + "] = " + std::to_string(accepted[i]) +
                     " rolls back beyond what the rings hold (draft_budget_tokens = " +
                     std::to_string(layout.formats().draft_budget_tokens) +
                     "); accepted: " + std::to_string(earliest_length(high_water) - segment.start) + " .. " +
                     std::to_string(segment.tokens));
    }
  }
  return {};
}

Status KVCacheManager::commit(std::uint64_t serial, std::span<const std::int32_t> accepted) {
  Impl& state = *impl_;
  state.freed_blocks.clear();
  if (Status status = state.step_outstanding("commit", serial); !status.ok()) return status;
  if (state.prefixes != nullptr) state.prefixes->clear_boundary_copies();
  if (!accepted.empty()) {
    if (Status status = state.check_accepted(accepted); !status.ok()) return status;
    for (std::size_t i = 0; i < accepted.size(); ++i) {
      const StepSegment& segment = state.step.segments[i];
      // Rows beyond the new length stay where they are: no reader looks there, the next step rewrites them.
      if (accepted[i] < segment.tokens) state.truncate(segment.slot, segment.start + accepted[i]);
    }
  }
  if (state.prefixes != nullptr) {
    for (std::size_t i = 0; i < state.step.segments.size(); ++i) {
      const StepSegment& segment = state.step.segments[i];
      state.prefixes->commit_segment(state, i, segment, accepted.empty() ? segment.tokens : accepted[i]);
    }
    state.prefixes->end_step();
  }
  state.step.active = false;
  return {};
}

// The blocks that a step takes from a later start on are the last ones of those from an earlier start: what is too much
// is at the end. The rings were written up to where the step really ends, or up to where the one before it did.
Status KVCacheManager::reject_late(std::span<const LateRejection> rejections) {
  Impl& state = *impl_;
  if (state.prefixes != nullptr) {
    return {StatusCode::kFailedPrecondition, "reject_late: prefixes were cached by what was committed"};
  }
  const auto segment_of = [&](std::int32_t slot) {
    const auto of_slot = [=](const StepSegment& segment) { return segment.slot == slot; };
    const auto end = state.step.active ? state.step.segments.end() : state.step.segments.begin();
    return std::pair(std::find_if(state.step.segments.begin(), end, of_slot), end);
  };
  // Before the outstanding step, if the sequence is part of it.
  const auto high_water_of = [&](std::int32_t slot) {
    const auto [segment, end] = segment_of(slot);
    if (segment == end) return state.sequences[slot].high_water;
    return state.step.old_high_water[static_cast<std::size_t>(segment - state.step.segments.begin())];
  };
  for (const LateRejection& rejection : rejections) {
    const std::int32_t slot = state.sequences.find(rejection.sequence);
    if (slot == SequenceTable::kNone) return state.sequences.stale(rejection.sequence);
    const std::int32_t length = state.sequences[slot].length - rejection.tokens;
    const auto [segment, end] = segment_of(slot);
    const std::int32_t start = segment == end ? length : length - segment->tokens;
    if (rejection.tokens < 0 || start < 0 || !state.reachable(start, high_water_of(slot))) {
      return invalid("reject_late: tokens = " + std::to_string(rejection.tokens) + " of a sequence of " +
                     std::to_string(state.sequences[slot].length) + "; accepted: those of the step that was committed");
    }
  }
  state.freed_blocks.clear();
  for (const LateRejection& rejection : rejections) {
    if (rejection.tokens == 0) continue;
    const std::int32_t slot = state.sequences.find(rejection.sequence);
    const std::int32_t length = state.sequences[slot].length - rejection.tokens;
    state.sequences[slot].high_water = std::max(high_water_of(slot), length);
    if (const auto [segment, end] = segment_of(slot); segment != end) segment->start -= rejection.tokens;
    state.truncate(slot, length);
  }
  return {};
}

// Blocks that the step took come back whatever became of it, and what a sequence may then still take does not exceed
// what it gave back and had set aside: going back to the old length is always affordable. Emptying is not, if a fork
// keeps the blocks; without a reservation nothing is owed.
Result<std::span<const SequenceId>> KVCacheManager::rollback(std::uint64_t serial, StepProgress progress) {
  Impl& state = *impl_;
  state.freed_blocks.clear();
  if (Status status = state.step_outstanding("rollback", serial); !status.ok()) return status;
  OutstandingStep& step = state.step;
  step.emptied.clear();
  if (progress == StepProgress::kPrepared) {
    rollback_blocks(state);
    for (std::size_t i = 0; i < step.segments.size(); ++i) {
      SequenceRecord& record = state.sequences[step.segments[i].slot];
      record.length = step.segments[i].start;
      record.high_water = step.old_high_water[i];
    }
  } else {
    for (const StepSegment& segment : step.segments) {
      if (state.reachable(segment.start, state.sequences[segment.slot].high_water)) {
        state.truncate(segment.slot, segment.start);
      } else {
        state.drop_reservation(segment.slot);
        state.truncate(segment.slot, 0);
        step.emptied.push_back(state.sequences.id(segment.slot));
      }
    }
  }
  if (state.prefixes != nullptr) state.prefixes->end_step();
  step.active = false;
  return std::span<const SequenceId>(step.emptied);
}

// ---- Forks --------------------------------------------------------------------------------------

// The child owes what its reservation misses; parent and child each owe a copy of a shared last block.
Status KVCacheManager::Impl::can_pay_fork(std::int32_t parent, std::int32_t reserve_tokens) const {
  const SequenceRecord& record = sequences[parent];
  for (const KvCacheGroup& group : groups) {
    const std::int32_t held = group.blocks(record.length);
    const std::int64_t owed = std::int64_t{group.outstanding_reservation(reserve_tokens, record.length, held)} +
                              group.outstanding_reservation(record.reserve_tokens, record.length, held) -
                              group.outstanding_reservation(record, parent);
    if (Status status = can_reserve(group, owed, "fork"); !status.ok()) return status;
  }
  return {};
}

void KVCacheManager::Impl::share_content(std::int32_t parent, std::int32_t child) {
  const std::uint32_t generation = sequences[child].generation;
  const std::int32_t reserve_tokens = sequences[child].reserve_tokens;
  sequences[child] = sequences[parent];
  sequences[child].generation = generation;
  sequences[child].reserve_tokens = reserve_tokens;
  for (KvCacheGroup& group : groups) {
    const std::int32_t held = group.blocks(sequences[parent].length);
    const std::int32_t old_outstanding = group.outstanding_reservation(sequences[parent], parent);
    for (std::int32_t column = 0; column < held; ++column) {
      const std::int32_t* source = group.table_entry(parent, column);
      std::int32_t* target = group.table_entry(child, column);
      for (std::size_t member = 0; member < group.pools().size(); ++member) {
        allocators[static_cast<std::size_t>(group.pools()[member])].add_owner(BlockId(source[member]));
        target[member] = source[member];
      }
    }
    group.set_shared_prefix_blocks(parent, held);
    group.set_shared_prefix_blocks(child, held);
    group.set_reserved_blocks(group.reserved_blocks() + group.outstanding_reservation(sequences[parent], parent) -
                              old_outstanding + group.outstanding_reservation(sequences[child], child));
  }
}

Result<ForkResult> KVCacheManager::can_fork(SequenceId parent, std::int64_t reserve_tokens) const {
  const Impl& state = *impl_;
  if (Status status = state.no_step_outstanding("fork"); !status.ok()) return status;
  const std::int32_t source = state.sequences.find(parent);
  if (source == SequenceTable::kNone) return state.sequences.stale(parent);
  if (Status status = state.check_reserve(reserve_tokens); !status.ok()) return status;
  if (Status status = state.slot_free(); !status.ok()) return status;
  const auto reserve = static_cast<std::int32_t>(reserve_tokens);
  if (Status status = state.can_pay_fork(source, reserve); !status.ok()) return status;
  const std::int32_t target = state.sequences.next_slot();
  return ForkResult{.child = state.sequences.id(target), .source = StateSlotId(source), .target = StateSlotId(target)};
}

Result<ForkResult> KVCacheManager::fork(SequenceId parent, std::int64_t reserve_tokens) {
  Impl& state = *impl_;
  Result<ForkResult> fork = can_fork(parent, reserve_tokens);
  if (!fork.ok()) return fork;
  const std::int32_t target = state.sequences.acquire();
  DSV4RT_CHECK(target == fork->target.value);
  state.sequences[target].reserve_tokens = static_cast<std::int32_t>(reserve_tokens);
  state.share_content(fork->source.value, target);
  if (state.prefixes != nullptr) {
    state.prefixes->clear_boundary_copies();
    state.prefixes->copy_track(fork->source.value, target);
    state.prefixes->keep_fork_point(state, target);
  }
  return fork;
}

// ---- A sequence shrinks and ends ----------------------------------------------------------------

Status KVCacheManager::truncate(SequenceId sequence, std::int64_t new_length) {
  Impl& state = *impl_;
  state.freed_blocks.clear();
  if (Status status = state.no_step_outstanding("truncate"); !status.ok()) return status;
  const std::int32_t slot = state.sequences.find(sequence);
  if (slot == SequenceTable::kNone) return state.sequences.stale(sequence);
  const SequenceRecord& record = state.sequences[slot];
  if (new_length < 0 || new_length > record.length) {
    return invalid("truncate: new_length = " + std::to_string(new_length) + "; accepted: 0 .. " +
                   std::to_string(record.length) + " (the sequence's length)");
  }
  if (new_length == record.length) return {};
  if (!state.reachable(new_length, record.high_water)) {
    return {StatusCode::kFailedPrecondition,
            "truncate: new_length = " + std::to_string(new_length) + ", but the rings were written up to position " +
                std::to_string(record.high_water - 1) + "; the earliest length possible is " +
                std::to_string(state.earliest_length(record.high_water)) + ", or 0"};
  }
  const auto length = static_cast<std::int32_t>(new_length);
  if (Status status = state.can_truncate(slot, length); !status.ok()) return status;
  state.truncate(slot, length);
  return {};
}

Status KVCacheManager::release(SequenceId sequence) {
  Impl& state = *impl_;
  state.freed_blocks.clear();
  if (Status status = state.no_step_outstanding("release"); !status.ok()) return status;
  const std::int32_t slot = state.sequences.find(sequence);
  if (slot == SequenceTable::kNone) return state.sequences.stale(sequence);
  // First the reservation, then the blocks: an empty sequence without one owes nothing.
  if (state.prefixes != nullptr) state.prefixes->release(slot);
  state.drop_reservation(slot);
  state.truncate(slot, 0);
  state.sequences.release(slot);
  return {};
}

Status KVCacheManager::clear_sequence(SequenceId sequence) {
  Impl& state = *impl_;
  state.freed_blocks.clear();
  if (Status status = state.no_step_outstanding("clear_sequence"); !status.ok()) return status;
  const std::int32_t slot = state.sequences.find(sequence);
  if (slot == SequenceTable::kNone) return state.sequences.stale(sequence);
  state.drop_reservation(slot);
  state.truncate(slot, 0);
  return {};
}

// ---- Questions ----------------------------------------------------------------------------------

Result<std::int64_t> KVCacheManager::length(SequenceId sequence) const {
  const std::int32_t slot = impl_->sequences.find(sequence);
  if (slot == SequenceTable::kNone) return impl_->sequences.stale(sequence);
  return std::int64_t{impl_->sequences[slot].length};
}

Result<StateSlotId> KVCacheManager::slot(SequenceId sequence) const {
  const std::int32_t slot = impl_->sequences.find(sequence);
  if (slot == SequenceTable::kNone) return impl_->sequences.stale(sequence);
  return StateSlotId(slot);
}

Result<std::int64_t> KVCacheManager::earliest_truncation(SequenceId sequence) const {
  const std::int32_t slot = impl_->sequences.find(sequence);
  if (slot == SequenceTable::kNone) return impl_->sequences.stale(sequence);
  return impl_->earliest_length(impl_->sequences[slot].high_water);
}

Result<std::vector<BlockId>> KVCacheManager::blocks(SequenceId sequence, int pool) const {
  const std::int32_t slot = impl_->sequences.find(sequence);
  if (slot == SequenceTable::kNone) return impl_->sequences.stale(sequence);
  if (pool < 0 || pool >= static_cast<int>(impl_->allocators.size())) {
    return invalid("pool " + std::to_string(pool) + "; accepted: 0 .. " + std::to_string(impl_->allocators.size()) +
                   " exclusive");
  }
  const KvCacheGroup& group = impl_->group_of(pool);
  const auto member = std::find(group.pools().begin(), group.pools().end(), pool) - group.pools().begin();
  std::vector<BlockId> ids;
  for (std::int32_t column = 0; column < group.blocks(impl_->sequences[slot].length); ++column) {
    ids.emplace_back(group.table_entry(slot, column)[member]);
  }
  return ids;
}

Result<SequenceUsage> KVCacheManager::sequence_usage(SequenceId sequence) const {
  const std::int32_t slot = impl_->sequences.find(sequence);
  if (slot == SequenceTable::kNone) return impl_->sequences.stale(sequence);
  const SequenceRecord& record = impl_->sequences[slot];
  return SequenceUsage{.slot = StateSlotId(slot),
                       .length = record.length,
                       .reserve_tokens = record.reserve_tokens,
                       .earliest_truncation = impl_->earliest_length(record.high_water)};
}

std::int64_t KVCacheManager::blocks_of_length(std::int64_t length, int pool) const {
  DSV4RT_CHECK(pool >= 0 && pool < static_cast<int>(impl_->allocators.size()));
  return impl_->group_of(pool).blocks(static_cast<std::int32_t>(length));
}

Result<std::optional<PoolShortage>> KVCacheManager::step_shortage(std::span<const StepEntry> batch,
                                                                  const StepOptions& options) const {
  std::vector<StepSegment> segments;
  segments.reserve(batch.size());
  std::int32_t rows = 0;
  if (Status status = impl_->resolve_batch(batch, options, segments, &rows); !status.ok()) return status;
  return shortage_of_step(*impl_, segments);
}

const StepOffsets& KVCacheManager::step_offsets() const noexcept {
  return impl_->metadata.offsets();
}

PoolUsage KVCacheManager::usage(int pool) const {
  DSV4RT_CHECK(pool >= 0 && pool < static_cast<int>(impl_->allocators.size()));
  const BlockAllocator& allocator = impl_->allocators[static_cast<std::size_t>(pool)];
  const KvCacheGroup& group = impl_->group_of(pool);
  return {.total = allocator.total(),
          .free = allocator.free(),
          .live = allocator.live(),
          .cached = allocator.cached(),
          .pinned = allocator.pinned(),
          .reserved = group.reserved_blocks()};
}

std::int32_t KVCacheManager::live_sequences() const noexcept {
  return impl_->sequences.live();
}

std::int32_t KVCacheManager::table_stride(int pool) const {
  DSV4RT_CHECK(pool >= 0 && pool < static_cast<int>(impl_->allocators.size()));
  return impl_->group_of(pool).columns();
}

void KVCacheManager::record_freed_blocks() {
  std::size_t blocks = 0;
  for (const BlockAllocator& allocator : impl_->allocators) blocks += static_cast<std::size_t>(allocator.total());
  impl_->freed_blocks.reserve(blocks);
  impl_->records_freed_blocks = true;
}

std::span<const FreedBlock> KVCacheManager::freed_blocks() const noexcept {
  return impl_->freed_blocks;
}

Status KVCacheManager::check_invariants() const {
  return impl_->check();
}

}  // namespace dsv4rt
