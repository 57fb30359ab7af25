// Steps of the prefix machine: what they bring, and how they end.
#include <algorithm>
#include <utility>

#include "machine_check.h"
#include "prefix_machine.h"

namespace dsv4rt::property {

std::vector<PrefixMachine::Entry> PrefixMachine::choose_batch(const Operation& op) {
  std::vector<Entry> batch;
  std::int64_t room = setup_.max_step_tokens;
  const std::size_t count = sequences_.size();
  for (std::size_t i = 0; i < count && room > 0; ++i) {
    if (((op.a >> (3 + i % 12)) & 1) == 0 && i > 0) continue;
    const std::size_t index = (op.a + i) % count;
    const Sequence& sequence = sequences_[index];
    std::int64_t tokens = 1;
    const int width = (op.b >> (i % 5)) % 8;
    if (width < 2) tokens = 1 + op.c % (setup_.draft_budget + 1);
    if (width == 2) tokens = kUnit - sequence.length() % kUnit;  // to the next boundary
    if (width == 3) tokens = kUnit - sequence.length() % kUnit + op.c % (setup_.draft_budget + 1);
    if (width == 4) tokens = 1 + (op.c + op.b) % 90;
    if (width > 4) tokens = 1 + op.c % (setup_.max_step_tokens + 1);
    tokens = std::min({tokens, room, setup_.max_context - sequence.length()});
    if (tokens < 1) continue;
    room -= tokens;
    Entry entry{.sequence = index, .ids = {}, .with_ids = op.c % 97 != 0};
    const std::int64_t junk_from = op.c % 5 == 0 ? tokens - op.b % (setup_.draft_budget + 2) : tokens;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const bool junk = t >= junk_from;
      entry.ids.push_back(junk ? 40000 + ++junk_ : stream_id(sequence.stream, sequence.length() + t));
    }
    batch.push_back(std::move(entry));
  }
  return batch;
}

void PrefixMachine::prepare(const Operation& op) {
  if (sequences_.empty()) return create(op);
  std::vector<Entry> entries = choose_batch(op);
  if (entries.empty()) return release(op);
  std::vector<StepEntry> batch;
  bool within_reservations = true;
  for (const Entry& entry : entries) {
    const Sequence& sequence = sequences_[entry.sequence];
    const auto tokens = static_cast<std::int32_t>(entry.ids.size());
    batch.push_back(
        {.sequence = sequence.id, .tokens = tokens, .token_ids = entry.with_ids ? entry.ids.data() : nullptr});
    within_reservations = within_reservations && sequence.length() + tokens <= sequence.reserve_tokens;
  }
  const bool may_fail = may_be_short(entries);
  const Result<StepPlan> plan = manager_->prepare_forward(batch);
  if (!plan.ok()) {
    ++counts_.short_steps;
    expect_code(plan.status(), StatusCode::kResourceExhausted, "prepare");
    expect(!within_reservations, "a step within its reservations must not fail");
    return expect(may_fail, "a step is refused although enough is free or cached");
  }
  counts_.reserved_steps += within_reservations ? 1 : 0;
  counts_.evicting_steps += manager_->freed_blocks().empty() ? 0 : 1;
  counts_.block_copies += static_cast<std::uint64_t>(plan->counts.block_copies);
  counts_.captures += manager_->captures().size();
  step_ = Outstanding{.plan = *plan, .entries = std::move(entries)};
  const StepView view = step_view(plan->metadata.data(), manager_->step_offsets(), plan->counts);
  for (std::int32_t i = 0; i < plan->counts.table_deltas; ++i) {
    ++taken_[static_cast<std::size_t>(view.table_deltas[i].table)];
  }
}

void PrefixMachine::run_step() {
  std::vector<std::uint64_t> tags;
  for (const Entry& entry : step_->entries) {
    Sequence& sequence = sequences_[entry.sequence];
    for (const std::int32_t id : entry.ids) add(sequence, id);
    tags.insert(tags.end(), sequence.tags.end() - static_cast<std::ptrdiff_t>(entry.ids.size()), sequence.tags.end());
    cut(sequence, sequence.length() - static_cast<std::int64_t>(entry.ids.size()));
  }
  device_->run(step_view(step_->plan.metadata.data(), manager_->step_offsets(), step_->plan.counts), tags,
               manager_->captures());
}

void PrefixMachine::end_step(const std::vector<std::int32_t>& accepted) {
  for (std::size_t i = 0; i < step_->entries.size(); ++i) {
    const Entry& entry = step_->entries[i];
    for (std::int32_t t = 0; t < accepted[i]; ++t) {
      add(sequences_[entry.sequence], entry.ids[static_cast<std::size_t>(t)]);
    }
  }
  step_.reset();
}

void PrefixMachine::commit(const Operation& op) {
  run_step();
  std::vector<std::int32_t> all;
  std::vector<std::int32_t> accepted;
  bool within_budget = true;
  for (std::size_t i = 0; i < step_->entries.size(); ++i) {
    const auto tokens = static_cast<std::int32_t>(step_->entries[i].ids.size());
    all.push_back(tokens);
    const std::int32_t most = setup_.draft_budget + (op.c % 8 == 0 ? 60 : 2);
    const std::int32_t rejected = ((op.a >> (i % 8)) & 1) != 0 ? (op.b + static_cast<std::int32_t>(i)) % most : 0;
    accepted.push_back(std::max(0, tokens - rejected));
    within_budget = within_budget && rejected <= setup_.draft_budget;
    counts_.rejected += static_cast<std::uint64_t>(tokens - accepted.back());
  }
  const std::uint64_t serial = step_->plan.serial;
  Status status = manager_->commit(serial, accepted);
  if (!status.ok()) {
    expect_code(status, StatusCode::kInvalidArgument, "commit");
    expect(!within_budget, "drafts within the budget cannot be rejected");
    accepted = all;
    expect_code(manager_->commit(serial), StatusCode::kOk, "commit after a refused one");
  }
  counts_.boundary_copies += manager_->boundary_copies().size();
  if (op.c % 29 == 0) {
    counts_.dropped_copies += manager_->boundary_copies().size();
    manager_->drop_boundary_copies();
    expect(manager_->boundary_copies().empty(), "dropped copies are gone");
  }
  for (const BoundaryCopyPlan& copy : manager_->boundary_copies()) device_->copy_out(copy);
  end_step(accepted);
}

void PrefixMachine::rollback(const Operation& op, StepProgress progress) {
  if (!step_) {
    return expect_code(manager_->rollback(op.a, progress).status(), StatusCode::kFailedPrecondition,
                       "rollback without a step");
  }
  const bool started = progress == StepProgress::kStarted;
  if (started) run_step();
  if (!started) {
    const StepView view = step_view(step_->plan.metadata.data(), manager_->step_offsets(), step_->plan.counts);
    for (std::int32_t i = 0; i < step_->plan.counts.table_deltas; ++i) {
      --taken_[static_cast<std::size_t>(view.table_deltas[i].table)];
    }
    counts_.undone_copies += static_cast<std::uint64_t>(step_->plan.counts.block_copies);
  }
  const auto emptied = manager_->rollback(step_->plan.serial, progress);
  expect_code(emptied.status(), StatusCode::kOk, "rollback");
  for (const SequenceId id : *emptied) {
    const auto entry = std::find_if(step_->entries.begin(), step_->entries.end(),
                                    [&](const Entry& e) { return sequences_[e.sequence].id == id; });
    expect(started && entry != step_->entries.end(), "a sequence is emptied that was not in the step");
    expect(static_cast<std::int32_t>(entry->ids.size()) > setup_.draft_budget + 1, "emptied without need");
    cut(sequences_[entry->sequence], 0);
    sequences_[entry->sequence].reserve_tokens = 0;
    ++counts_.emptied;
  }
  step_.reset();
}

}  // namespace dsv4rt::property
