// What the prefix machine compares after every operation.
#include <algorithm>
#include <set>

#include "cache_design.h"
#include "prefix_machine.h"

namespace dsv4rt::property {

void PrefixMachine::note_free(std::vector<std::int64_t>& free) const {
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    free.push_back(manager_->usage(static_cast<int>(pool)).free);
  }
}

// Every block that became free in the last call is reported, once, and nothing else is; then its bytes are gone.
void PrefixMachine::check_freed(const std::vector<std::int64_t>& before) {
  std::vector<std::int64_t> reported(pools_.size(), 0);
  std::set<std::pair<std::int32_t, std::int32_t>> distinct;
  for (const FreedBlock& freed : manager_->freed_blocks()) {
    ++reported[static_cast<std::size_t>(freed.pool)];
    expect(distinct.emplace(freed.pool, freed.block.value).second, "a block is reported free twice");
  }
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    const std::int64_t after = manager_->usage(static_cast<int>(pool)).free;
    const std::int64_t change = after - before[pool];
    // Calls that were refused leave the report of the call before, or none.
    if (change == 0 && taken_[pool] == 0) continue;
    expect(change == reported[pool] - taken_[pool],
           "pool " + std::to_string(pool) + ": " + std::to_string(change) + " blocks became free, reported are " +
               std::to_string(reported[pool]) + " with " + std::to_string(taken_[pool]) + " taken");
  }
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    if (manager_->usage(static_cast<int>(pool)).free == before[pool] && taken_[pool] == 0) reported[pool] = 0;
  }
  for (const FreedBlock& freed : manager_->freed_blocks()) {
    if (reported[static_cast<std::size_t>(freed.pool)] == 0) continue;
    ++counts_.poisoned_blocks;
    device_->poison(freed);
  }
}

bool PrefixMachine::anything_reserved() const {
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    if (manager_->usage(static_cast<int>(pool)).reserved > 0) return true;
  }
  return false;
}

bool PrefixMachine::may_be_short(const std::vector<Entry>& entries) const {
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    const std::int64_t ratio = pools_[pool].ratio;
    const std::int64_t per_block = pools_[pool].rows_per_block;
    const auto blocks = [&](std::int64_t tokens) { return (tokens / ratio + per_block - 1) / per_block; };
    std::int64_t most = 0;
    for (const Entry& entry : entries) {
      const std::int64_t length = sequences_[entry.sequence].length();
      most += blocks(length + static_cast<std::int64_t>(entry.ids.size())) - blocks(length);
      if (length / ratio % per_block != 0) ++most;  // a copy of its last block
    }
    const PoolUsage usage = manager_->usage(static_cast<int>(pool));
    if (usage.free + usage.cached - usage.reserved < most) return true;
  }
  return false;
}

bool PrefixMachine::rings_serve(const Sequence& sequence, std::int64_t length) const {
  for (std::size_t ring = 0; ring <= schedule_.ratios().size(); ++ring) {
    const std::int64_t needed = oldest_needed(schedule_, setup_.window, ring, length);
    for (std::int64_t position = needed; position < length; ++position) {
      const RingRow row = device_->ring_row(ring, sequence.slot, position);
      if (row.position != position || row.tag != sequence.tags[static_cast<std::size_t>(position)]) return false;
    }
  }
  return true;
}

// Units and states come and go one by one: only leaves leave, only units that are there have states.
void PrefixMachine::follow_events() {
  std::int64_t states = 0;
  for (const PrefixEventRecord& event : manager_->prefix_events()) {
    const auto unit = units_.find(event.digest);
    const auto parent = units_.find(event.parent);
    switch (event.kind) {
      case PrefixEvent::Kind::kUnitStored: {
        expect(unit == units_.end() && event.end_tokens % 128 == 0, "a unit is stored twice");
        const bool first = event.end_tokens == 128;
        expect(first == (parent == units_.end()), "a unit is stored without its parent");
        if (!first) ++parent->second.children;
        const PrefixDigest root = first ? event.parent : parent->second.root;
        ++units_of_root_[root];
        units_[event.digest] = {.parent = event.parent, .root = root, .end_tokens = event.end_tokens};
        break;
      }
      case PrefixEvent::Kind::kUnitRemoved:
        expect(unit != units_.end() && unit->second.children == 0 && !unit->second.state, "a unit in use is removed");
        if (parent != units_.end()) --parent->second.children;
        --units_of_root_[unit->second.root];
        units_.erase(unit);
        break;
      case PrefixEvent::Kind::kStateStored:
      case PrefixEvent::Kind::kStateRemoved: {
        const bool stored = event.kind == PrefixEvent::Kind::kStateStored;
        expect(unit != units_.end() && unit->second.state != stored, "a state without its unit, or twice");
        unit->second.state = stored;
        break;
      }
    }
  }
  manager_->clear_prefix_events();
  for (const auto& [digest, unit] : units_) states += unit.state ? 1 : 0;
  const PrefixStats stats = manager_->prefix_stats();
  expect(stats.kept_units == static_cast<std::int64_t>(units_.size()) && stats.kept_states == states,
         "kept units and states are those that events tell of");
  expect(stats.units_stored - stats.units_removed_for_space - stats.units_removed_by_quota -
                     stats.units_removed_on_request ==
                 stats.kept_units &&
             stats.states_taken - stats.states_removed == stats.kept_states,
         "counts add up");
  for (const auto& [root, units] : units_of_root_) {
    expect(setup_.quota_units == 0 || units <= setup_.quota_units, "a salt keeps more than its quota");
  }
}

void PrefixMachine::verify_pools() {
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    const PoolUsage usage = manager_->usage(static_cast<int>(pool));
    std::set<std::int32_t> owned;
    for (const Sequence& sequence : sequences_) {
      for (const BlockId block : *manager_->blocks(sequence.id, static_cast<int>(pool))) owned.insert(block.value);
    }
    expect(usage.live == static_cast<std::int64_t>(owned.size()) &&
               usage.free + usage.live + usage.cached + usage.pinned == usage.total,
           "free + live + cached + pinned of pool " + std::to_string(pool));
    expect(usage.free + usage.cached >= usage.reserved, "reservations of pool " + std::to_string(pool));
  }
}

void PrefixMachine::verify() {
  if (Status status = manager_->check_invariants(); !status.ok()) throw Divergence(status.to_string());
  expect(manager_->live_sequences() == static_cast<std::int32_t>(sequences_.size()), "live sequences");
  follow_events();
  verify_pools();
  for (const Pin& pin : pins_) {
    std::vector<std::int32_t> longer = pin.ids;
    longer.push_back(1);
    const std::array<std::byte, 4> salt{static_cast<std::byte>(pin.salt), std::byte{0}, std::byte{1}, std::byte{2}};
    expect(take(manager_->prefix_lookup(longer, salt)).hit_tokens == static_cast<std::int64_t>(pin.ids.size()),
           "a pinned prefix does not hit");
  }
  if (step_) return;  // the manager's tables are one step ahead of the device's
  for (const Sequence& sequence : sequences_) verify_content(sequence);
}

void PrefixMachine::verify_content(const Sequence& sequence) {
  expect(*manager_->length(sequence.id) == sequence.length() && manager_->slot(sequence.id)->value == sequence.slot,
         "length and slot");
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    const std::int64_t ratio = pools_[pool].ratio;
    for (std::int64_t row = 0; row < sequence.length() / ratio; ++row) {
      expect(
          device_->read_row(pool, sequence.slot, row) == sequence.tags[static_cast<std::size_t>((row + 1) * ratio - 1)],
          "row " + std::to_string(row) + " of pool " + std::to_string(pool) + " in slot " +
              std::to_string(sequence.slot) + " is not what a cold run leaves");
    }
    const std::vector<BlockId> blocks = *manager_->blocks(sequence.id, static_cast<int>(pool));
    for (std::size_t column = 0; column < blocks.size(); ++column) {
      expect(device_->block_at(pool, sequence.slot, static_cast<std::int32_t>(column)) == blocks[column].value,
             "device table and manager disagree");
    }
  }
  for (std::int64_t length = sequence.length();
       length >= std::max<std::int64_t>(1, *manager_->earliest_truncation(sequence.id)); --length) {
    expect(rings_serve(sequence, length), "rings do not hold what length " + std::to_string(length) + " needs");
  }
}

void PrefixMachine::finish() {
  if (step_) take(manager_->rollback(step_->plan.serial, StepProgress::kPrepared));
  step_.reset();
  while (!sequences_.empty()) release({});
  while (!pins_.empty()) unpin({});
  const PrefixStats stats = manager_->prefix_stats();
  expect_code(manager_->clear_prefixes(), StatusCode::kOk, "clear");
  verify();
  for (std::size_t pool = 0; pool < pools_.size(); ++pool) {
    const PoolUsage usage = manager_->usage(static_cast<int>(pool));
    expect(usage.free == usage.total && usage.reserved == 0, "blocks are lost in pool " + std::to_string(pool));
  }
  const PrefixStats last = manager_->prefix_stats();
  expect(last.kept_units == 0 && last.kept_states == 0 && last.pinned_units == 0, "units or states are lost");
  counts_.evicted_on_request += static_cast<std::uint64_t>(stats.units_removed_on_request);
  counts_.evicted_for_space += static_cast<std::uint64_t>(stats.units_removed_for_space);
  counts_.evicted_by_quota += static_cast<std::uint64_t>(stats.units_removed_by_quota);
  counts_.states_taken += static_cast<std::uint64_t>(stats.states_taken);
  counts_.states_removed += static_cast<std::uint64_t>(stats.states_removed);
  counts_.states_refused += static_cast<std::uint64_t>(stats.states_refused);
  counts_.detached += static_cast<std::uint64_t>(stats.sequences_detached);
}

}  // namespace dsv4rt::property
