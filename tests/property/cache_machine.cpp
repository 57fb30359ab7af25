#include "cache_machine.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <ostream>
#include <utility>

#include "cache_design.h"

namespace dsv4rt::property {
namespace {

constexpr int kKinds = 23;

}  // namespace

std::ostream& operator<<(std::ostream& out, const Operation& op) {
  constexpr std::array<const char*, kKinds> kNames = {"create",
                                                      "create",
                                                      "restore",
                                                      "fork",
                                                      "fork",
                                                      "fork",
                                                      "truncate",
                                                      "truncate",
                                                      "release",
                                                      "stale id",
                                                      "invalid step",
                                                      "rollback of a prepared step",
                                                      "rollback of a started step",
                                                      "rollback of a started step",
                                                      "commit",
                                                      "commit",
                                                      "commit",
                                                      "commit",
                                                      "prepare",
                                                      "prepare",
                                                      "prepare",
                                                      "prepare",
                                                      "prepare"};
  return out << kNames[op.kind % kNames.size()] << " {" << int{op.kind} << ", " << op.a << ", " << op.b << ", " << op.c
             << "}";
}

std::ostream& operator<<(std::ostream& out, const CacheSetup& setup) {
  out << "ratios";
  for (const std::int32_t ratio : setup.ratios) out << " " << ratio;
  out << ", window " << setup.window << ", rows per block " << setup.csa_rows_per_block << " / "
      << setup.hca_rows_per_block << ", drafts " << setup.draft_budget << ", sequences " << setup.max_sequences
      << ", context " << setup.max_context << ", step " << setup.max_step_tokens << ", spare blocks";
  for (const std::int32_t blocks : setup.spare_blocks) out << " " << blocks;
  return out;
}

CacheMachine::CacheMachine(const CacheSetup& setup, CacheEvents& events) : setup_(setup), events_(events) {
  const CacheDesign design = design_of(setup);
  const CacheLayout& layout = design.layout;
  schedule_ = design.schedule;
  MemoryPlan plan = take(plan_memory(design.config, schedule_, layout, design.limits));
  for (std::size_t pool = 0; pool < layout.pools().size(); ++pool) {
    const PoolSpec& spec = layout.pools()[pool];
    model_.pools.push_back({spec.ratio, spec.ratio_class, spec.shape.rows});
    const std::int64_t total = model_.blocks_for(pool, setup.max_context) +
                               setup.spare_blocks[static_cast<std::size_t>(spec.layer.value)] +
                               (spec.role == CacheRole::kIndexK ? 1 : 0);
    plan.pool_blocks[pool] = total + 1;
    model_.totals.push_back(total);
  }
  manager_ = take(KVCacheManager::create(schedule_, layout, plan));
  manager_->record_freed_blocks();
  // Ring kinds as the model sees them: the window, then one per ratio.
  std::vector<std::int64_t> rings{setup.window + setup.draft_budget};
  for (const std::int32_t ratio : schedule_.ratios()) {
    rings.push_back((ratio == 4 ? 2 * ratio : ratio) + setup.draft_budget);
  }
  device_ = std::make_unique<FakeDevice>(model_.pools, rings, setup.max_sequences, *manager_);
}

void CacheMachine::apply(const Operation& op) {
  frees_ = false;
  switch (op.kind % kKinds) {
    case 0:
    case 1:
      create(op);
      break;
    case 2:
      restore(op);
      break;
    case 3:
    case 4:
    case 5:
      fork(op);
      break;
    case 6:
    case 7:
      truncate(op);
      break;
    case 8:
      release(op);
      break;
    case 9:
      use_stale_id(op);
      break;
    case 10:
      prepare_invalid(op);
      break;
    case 11:
      rollback_prepared(op);
      break;
    case 12:
    case 13:
      rollback_started(op);
      break;
    case 14:
    case 15:
    case 16:
    case 17:
      commit(op);
      break;
    default:
      prepare(op);
      break;
  }
  verify();
  check_freed();
}

std::int64_t CacheMachine::reserve_from(std::uint16_t value) const {
  return value % 2 == 0 ? (value / 2) % (setup_.max_context + 1) : 0;
}

void CacheMachine::create(const Operation& op) {
  const std::int64_t reserve = reserve_from(op.a);
  const Status admit = manager_->can_admit(reserve);
  const Result<SequenceId> id = manager_->create_sequence(reserve);
  expect(admit.code() == id.status().code(), "can_admit and create_sequence disagree");
  if (step_) return expect_code(admit, StatusCode::kFailedPrecondition, "create");
  CacheModel after = model_;
  after.create({}, 0, reserve);
  const bool fits = static_cast<std::int32_t>(model_.sequences.size()) < setup_.max_sequences && after.affordable();
  events_.short_creates += after.affordable() ? 0 : 1;
  expect_code(admit, fits ? StatusCode::kOk : StatusCode::kResourceExhausted, "create");
  if (fits) model_.create(*id, manager_->slot(*id)->value, reserve);
}

void CacheMachine::restore(const Operation& op) {
  const std::int64_t length = op.b % (setup_.max_context + 2);  // one too many is refused
  const std::int64_t reserve = reserve_from(op.a);
  CacheModel after = model_;
  after.restore({}, 0, length, reserve);
  const bool fits = static_cast<std::int32_t>(model_.sequences.size()) < setup_.max_sequences && after.affordable();
  // Some that fit come in two parts.
  const bool in_parts = !step_ && length <= setup_.max_context && fits && op.b % 3 == 0;
  const Result<SequenceId> id = manager_->restore_sequence(in_parts ? op.a % (length + 1) : length, reserve);
  if (step_) return expect_code(id.status(), StatusCode::kFailedPrecondition, "restore");
  if (length > setup_.max_context) return expect_code(id.status(), StatusCode::kInvalidArgument, "restore");
  if (in_parts && id.ok()) expect_code(manager_->extend_restored(*id, length), StatusCode::kOk, "extend");
  expect_code(id.status(), fits ? StatusCode::kOk : StatusCode::kResourceExhausted, "restore");
  if (!fits) return;
  ++events_.restored;
  model_.restore(*id, manager_->slot(*id)->value, length, reserve);
  const ModelSequence& sequence = model_.sequences.back();
  std::vector<std::int64_t> first_needed{std::max<std::int64_t>(0, length - setup_.window + 1)};
  for (const std::int32_t ratio : schedule_.ratios()) {
    const std::int64_t block = length - length % ratio;
    first_needed.push_back(ratio == 4 ? std::max<std::int64_t>(0, block - ratio) : block);
  }
  device_->restore(*manager_, *id, sequence.slot, sequence.tokens, first_needed,
                   length == 0 ? 0 : setup_.draft_budget + 1);
}

void CacheMachine::fork(const Operation& op) {
  if (model_.sequences.empty()) return;
  const std::size_t parent = op.a % model_.sequences.size();
  const std::int64_t reserve = reserve_from(op.b);
  const Result<ForkResult> planned = manager_->can_fork(model_.sequences[parent].id, reserve);
  const Result<ForkResult> result = manager_->fork(model_.sequences[parent].id, reserve);
  expect(planned.status().code() == result.status().code(), "can_fork and fork disagree");
  expect(!planned.ok() || (planned->child == result->child && planned->target == result->target), "can_fork's slots");
  if (step_) return expect_code(result.status(), StatusCode::kFailedPrecondition, "fork");
  CacheModel after = model_;
  after.fork(parent, {}, 0, reserve);
  const bool fits = static_cast<std::int32_t>(model_.sequences.size()) < setup_.max_sequences && after.affordable();
  events_.short_forks += after.affordable() ? 0 : 1;
  expect_code(result.status(), fits ? StatusCode::kOk : StatusCode::kResourceExhausted, "fork");
  if (!fits) return;
  expect(result->source != result->target && result->source.value == model_.sequences[parent].slot, "fork slots");
  model_.fork(parent, result->child, result->target.value, reserve);
  device_->fork(result->source.value, result->target.value);
}

void CacheMachine::truncate(const Operation& op) {
  if (model_.sequences.empty()) return;
  const std::size_t index = op.a % model_.sequences.size();
  const ModelSequence& sequence = model_.sequences[index];
  // Mostly a little, as drafts do; sometimes to 0, anywhere, or beyond the end.
  std::int64_t length = sequence.length() - op.b % 12;
  if (op.c % 8 == 0) length = 0;
  if (op.c % 8 == 1) length = op.b % (setup_.max_context + 1);
  const Status status = manager_->truncate(sequence.id, length);
  if (step_) return expect_code(status, StatusCode::kFailedPrecondition, "truncate");
  if (length < 0 || length > sequence.length()) return expect_code(status, StatusCode::kInvalidArgument, "truncate");
  if (length != 0 && !rings_serve(sequence, length)) {
    return expect_code(status, StatusCode::kFailedPrecondition, "truncate");
  }
  CacheModel after = model_;
  after.cut(index, length);
  const bool fits = after.affordable();
  events_.short_truncates += fits ? 0 : 1;
  expect_code(status, fits ? StatusCode::kOk : StatusCode::kResourceExhausted, "truncate");
  if (!fits) return;
  model_ = std::move(after);
  frees_ = true;
}

void CacheMachine::release(const Operation& op) {
  if (model_.sequences.empty()) return;
  const std::size_t index = op.a % model_.sequences.size();
  const SequenceId id = model_.sequences[index].id;
  const Status status = manager_->release(id);
  if (step_) return expect_code(status, StatusCode::kFailedPrecondition, "release");
  expect_code(status, StatusCode::kOk, "release");
  frees_ = true;
  stale_.push_back(id);
  model_.sequences.erase(model_.sequences.begin() + static_cast<std::ptrdiff_t>(index));
}

void CacheMachine::use_stale_id(const Operation& op) {
  SequenceId id{static_cast<std::uint32_t>(op.a % 8), op.b % 2u == 0 ? 0u : 1000000u};
  if (!stale_.empty() && op.c % 4 != 0) id = stale_[op.a % stale_.size()];
  expect_code(manager_->length(id).status(), StatusCode::kStaleHandle, "length");
  expect_code(manager_->slot(id).status(), StatusCode::kStaleHandle, "slot");
  expect_code(manager_->blocks(id, 0).status(), StatusCode::kStaleHandle, "blocks");
  expect_code(manager_->earliest_truncation(id).status(), StatusCode::kStaleHandle, "earliest_truncation");
  const StatusCode code = step_ ? StatusCode::kFailedPrecondition : StatusCode::kStaleHandle;
  expect_code(manager_->fork(id).status(), code, "fork");
  expect_code(manager_->truncate(id, 0), code, "truncate");
  expect_code(manager_->release(id), code, "release");
  std::vector<StepEntry> batch{{.sequence = id, .tokens = 1}};
  if (!model_.sequences.empty() && setup_.max_sequences > 1) {  // after a valid entry, nothing of it may stay
    batch.insert(batch.begin(), {.sequence = model_.sequences[op.b % model_.sequences.size()].id, .tokens = 1});
  }
  const Status status = manager_->prepare_forward(batch).status();
  const bool at_end =
      !step_ && batch.size() == 2 && model_.sequences[op.b % model_.sequences.size()].length() == setup_.max_context;
  expect_code(status, at_end ? StatusCode::kInvalidArgument : code, "prepare_forward");
}

std::vector<ModelAppend> CacheMachine::choose_batch(const Operation& op) const {
  std::vector<ModelAppend> batch;
  const std::size_t count = model_.sequences.size();
  const std::size_t first = op.a % count;
  for (std::size_t i = 0; i < count; ++i) {
    if (((op.a >> (3 + i % 12)) & 1) == 0 && i > 0) continue;
    std::int32_t tokens = 1;
    const int width = (op.b >> (i % 5)) % 4;
    if (width == 1) tokens = 1 + op.c % (setup_.draft_budget + 1);
    if (width == 2) tokens = 1 + (op.c + op.b) % 11;
    if (width == 3) tokens = 1 + op.c % (setup_.max_step_tokens + 4);
    batch.push_back({(first + i) % count, tokens});
  }
  return batch;
}

void CacheMachine::prepare(const Operation& op) {
  if (model_.sequences.empty()) return create(op);
  const std::vector<ModelAppend> entries = choose_batch(op);
  std::vector<StepEntry> batch;
  std::int64_t tokens = 0;
  bool valid = true;
  for (const ModelAppend& entry : entries) {
    const ModelSequence& sequence = model_.sequences[entry.sequence];
    batch.push_back({.sequence = sequence.id, .tokens = entry.tokens});
    tokens += entry.tokens;
    valid = valid && sequence.length() + entry.tokens <= setup_.max_context;
  }
  const std::int32_t padding = op.b % 5 == 0 ? static_cast<std::int32_t>(tokens) + op.c % 9 : 0;
  valid = valid && tokens <= setup_.max_step_tokens && padding <= setup_.max_step_tokens;
  const Result<StepPlan> plan = manager_->prepare_forward(batch, {.pad_to_tokens = padding});
  if (step_) return expect_code(plan.status(), StatusCode::kFailedPrecondition, "prepare");
  if (!valid) return expect_code(plan.status(), StatusCode::kInvalidArgument, "prepare");
  CacheModel after = model_;
  for (const ModelAppend& entry : entries) after.append(entry);
  const bool fits = after.affordable();
  events_.short_steps += fits ? 0 : 1;
  expect_code(plan.status(), fits ? StatusCode::kOk : StatusCode::kResourceExhausted, "prepare");
  if (within_reservations(entries)) {
    expect(fits, "a step within its reservations must not fail");
    ++events_.reserved_steps;
  }
  if (!fits) return;
  events_.padded_steps += padding != 0 ? 1 : 0;
  events_.block_copies += static_cast<std::uint64_t>(plan->counts.block_copies);
  step_ = Outstanding{.plan = *plan, .entries = entries, .before = std::exchange(model_, std::move(after))};
  check_metadata(entries, padding != 0 ? padding : static_cast<std::int32_t>(tokens));
}

bool CacheMachine::within_reservations(const std::vector<ModelAppend>& entries) const {
  return std::all_of(entries.begin(), entries.end(), [&](const ModelAppend& entry) {
    const ModelSequence& sequence = model_.sequences[entry.sequence];
    return sequence.length() + entry.tokens <= sequence.reserve_tokens;
  });
}

void CacheMachine::prepare_invalid(const Operation& op) {
  const StatusCode code = step_ ? StatusCode::kFailedPrecondition : StatusCode::kInvalidArgument;
  expect_code(manager_->prepare_forward({}).status(), code, "empty batch");
  if (model_.sequences.empty()) return;
  const SequenceId id = model_.sequences[op.a % model_.sequences.size()].id;
  const std::vector<StepEntry> none{{.sequence = id, .tokens = -(op.b % 3)}};
  expect_code(manager_->prepare_forward(none).status(), code, "no tokens");
  const std::vector<StepEntry> twice{{.sequence = id, .tokens = 1}, {.sequence = id, .tokens = 1}};
  expect_code(manager_->prepare_forward(twice).status(), code, "duplicate");
  const std::vector<StepEntry> huge{{.sequence = id, .tokens = 0x7fffffff}};
  expect_code(manager_->prepare_forward(huge).status(), code, "beyond the context");
  const std::vector<StepEntry> one{{.sequence = id, .tokens = 1}};
  expect_code(manager_->prepare_forward(one, {.pad_to_tokens = -1}).status(), code, "negative padding");
  expect_code(manager_->create_sequence(-1).status(), code, "negative reservation");
  expect_code(manager_->fork(id, setup_.max_context + 1).status(), code, "reservation beyond the context");
}

StepView CacheMachine::view() const {
  return step_view(step_->plan.metadata.data(), manager_->step_offsets(), step_->plan.counts);
}

void CacheMachine::check_tokens(const StepView& step, std::size_t entry, const ModelAppend& append) const {
  const ModelSequence& sequence = model_.sequences[append.sequence];
  const std::int64_t start = sequence.length() - append.tokens;
  const std::int32_t first = step.sequence_first_token[entry];
  expect(step.sequence_slot[entry] == sequence.slot && step.sequence_start[entry] == start, "sequence arrays");
  expect(step.sequence_first_token[entry + 1] == first + append.tokens, "sequence_first_token");
  for (std::int32_t i = 0; i < append.tokens; ++i) {
    const std::int32_t t = first + i;
    expect(step.token_sequence[t] == static_cast<std::int32_t>(entry), "token_sequence");
    expect(step.token_position[t] == start + i, "token_position");
    for (std::size_t c = 0; c < schedule_.ratios().size(); ++c) {
      const std::int32_t ratio = schedule_.ratios()[c];
      const bool ends_block = (start + i + 1) % ratio == 0;
      expect(step.valid_mask[c][t] == (ends_block ? 1 : 0), "valid_mask");
      expect(step.row_index[c][t] == (ends_block ? (start + i) / ratio : -1), "row_index");
    }
  }
}

void CacheMachine::check_metadata(const std::vector<ModelAppend>& entries, std::int32_t rows) {
  const StepView step = view();
  expect(step.counts.sequences == static_cast<std::int32_t>(entries.size()), "sequences");
  expect(step.counts.tokens == rows && step.sequence_first_token[0] == 0, "tokens");
  for (std::size_t i = 0; i < entries.size(); ++i) check_tokens(step, i, entries[i]);
  expect(step.sequence_first_token[entries.size()] == step.counts.valid_tokens, "valid_tokens");
  for (std::int32_t t = step.counts.valid_tokens; t < rows; ++t) {
    expect(step.token_sequence[t] == -1 && step.token_position[t] == 0, "padding");
    for (std::size_t c = 0; c < schedule_.ratios().size(); ++c) {
      expect(step.valid_mask[c][t] == 0 && step.row_index[c][t] == -1, "padding masks");
    }
  }
}

bool CacheMachine::rings_serve(const ModelSequence& sequence, std::int64_t length) const {
  for (std::size_t ring = 0; ring <= schedule_.ratios().size(); ++ring) {
    const std::int64_t needed = oldest_needed(schedule_, setup_.window, ring, length);
    // Where nothing older is needed, the ring must still not have gone a whole turn beyond: lengths
    // that can be cut to have no gaps.
    if (needed == length && length < sequence.length() &&
        device_->ring_row(ring, sequence.slot, length).position > length) {
      return false;
    }
    for (std::int64_t position = needed; position < length; ++position) {
      const RingRow row = device_->ring_row(ring, sequence.slot, position);
      if (row.position != position || row.tag != sequence.tokens[static_cast<std::size_t>(position)]) return false;
    }
  }
  return true;
}

std::int64_t CacheMachine::earliest_length(const ModelSequence& sequence) const {
  std::int64_t length = sequence.length();
  while (length > 0 && rings_serve(sequence, length - 1)) --length;
  return length;
}

void CacheMachine::run_step() {
  std::vector<std::uint64_t> tags;
  for (const ModelAppend& entry : step_->entries) {
    const std::vector<std::uint64_t>& tokens = model_.sequences[entry.sequence].tokens;
    tags.insert(tags.end(), tokens.end() - entry.tokens, tokens.end());
  }
  device_->run(view(), tags);
}

void CacheMachine::commit(const Operation& op) {
  if (!step_) {
    expect_code(manager_->commit(op.a), StatusCode::kFailedPrecondition, "commit without a step");
    return prepare(op);
  }
  expect_code(manager_->commit(step_->plan.serial + 1), StatusCode::kFailedPrecondition, "commit of another step");
  run_step();

  std::vector<std::int32_t> accepted;
  bool in_range = true;
  bool reachable = true;
  std::int64_t rejected_tokens = 0;
  CacheModel after = model_;
  for (std::size_t i = 0; i < step_->entries.size(); ++i) {
    const ModelAppend& entry = step_->entries[i];
    const std::int32_t rejected = ((op.a >> (i % 8)) & 1) != 0 ? (op.b + static_cast<std::int32_t>(i)) % 12 : 0;
    accepted.push_back(std::max(op.c % 16 == 0 ? -1 : 0, entry.tokens - rejected));
    in_range = in_range && accepted.back() >= 0;
    rejected_tokens += entry.tokens - accepted.back();
    const std::int64_t length = model_.sequences[entry.sequence].length() - entry.tokens + accepted.back();
    if (accepted.back() < 0) continue;
    reachable = reachable && (length == 0 || rings_serve(model_.sequences[entry.sequence], length));
    after.cut(entry.sequence, length);
  }
  const bool all = op.b % 3 == 0;
  const Status status = all ? manager_->commit(step_->plan.serial) : manager_->commit(step_->plan.serial, accepted);
  if (!all && !(in_range && reachable)) {
    events_.refused_rollbacks += in_range ? 1 : 0;
    expect_code(status, StatusCode::kInvalidArgument, "commit");
    expect_code(manager_->commit(step_->plan.serial), StatusCode::kOk, "commit after a refused one");
  } else {
    expect_code(status, StatusCode::kOk, "commit");
    events_.rollbacks += all || rejected_tokens == 0 ? 0 : 1;
    if (!all) model_ = std::move(after);
  }
  step_.reset();
  frees_ = true;
}

void CacheMachine::rollback_prepared(const Operation& op) {
  if (!step_) {
    const auto refused = manager_->rollback(op.a, StepProgress::kPrepared);
    return expect_code(refused.status(), StatusCode::kFailedPrecondition, "rollback without a step");
  }
  const auto emptied = manager_->rollback(step_->plan.serial, StepProgress::kPrepared);
  expect_code(emptied.status(), StatusCode::kOk, "rollback of a prepared step");
  expect(emptied->empty(), "a step that never started has emptied a sequence");
  expect(manager_->freed_blocks().empty(), "blocks that nobody wrote are reported");
  model_ = std::move(step_->before);
  events_.undone_copies += static_cast<std::uint64_t>(step_->plan.counts.block_copies);
  step_.reset();
}

// The worst that a started step can leave: every row of it was written. Whoever the rings still serve goes back and
// keeps what was copied for it; the others are emptied and have no reservation.
void CacheMachine::rollback_started(const Operation& op) {
  if (!step_) {
    const auto refused = manager_->rollback(op.a, StepProgress::kStarted);
    return expect_code(refused.status(), StatusCode::kFailedPrecondition, "rollback without a step");
  }
  const std::uint64_t serial = step_->plan.serial;
  expect_code(manager_->rollback(serial + 1, StepProgress::kStarted).status(), StatusCode::kFailedPrecondition,
              "rollback of another step");
  run_step();
  CacheModel after = model_;
  CacheModel with_reservations = model_;
  std::vector<SequenceId> lost;
  for (const ModelAppend& entry : step_->entries) {
    const ModelSequence& sequence = model_.sequences[entry.sequence];
    const std::int64_t before = sequence.length() - entry.tokens;
    const bool serves = before == 0 || rings_serve(sequence, before);
    after.cut(entry.sequence, serves ? before : 0);
    with_reservations.cut(entry.sequence, serves ? before : 0);
    if (serves) continue;
    lost.push_back(sequence.id);
    after.sequences[entry.sequence].reserve_tokens = 0;
  }
  expect(after.affordable(), "the model cannot pay for a rollback");
  events_.kept_copies += static_cast<std::uint64_t>(step_->plan.counts.block_copies);
  events_.emptied += lost.size();
  events_.broke_emptied += with_reservations.affordable() ? 0 : 1;
  const auto emptied = manager_->rollback(serial, StepProgress::kStarted);
  expect_code(emptied.status(), StatusCode::kOk, "rollback of a started step");
  expect(std::equal(emptied->begin(), emptied->end(), lost.begin(), lost.end()), "list of emptied sequences");
  model_ = std::move(after);
  step_.reset();
  frees_ = true;
}

std::vector<std::uint64_t> CacheMachine::owned_blocks() const {
  std::vector<std::uint64_t> owned;
  for (const ModelSequence& sequence : model_.sequences) {
    for (std::size_t pool = 0; pool < model_.pools.size(); ++pool) {
      for (const BlockId block : *manager_->blocks(sequence.id, static_cast<int>(pool))) {
        owned.push_back(std::uint64_t{pool} << 32 | static_cast<std::uint32_t>(block.value));
      }
    }
  }
  std::sort(owned.begin(), owned.end());
  owned.erase(std::unique(owned.begin(), owned.end()), owned.end());
  return owned;
}

void CacheMachine::check_freed() {
  const std::vector<std::uint64_t> before = std::exchange(owned_, owned_blocks());
  if (!frees_) return;
  std::vector<std::uint64_t> expected;
  std::set_difference(before.begin(), before.end(), owned_.begin(), owned_.end(), std::back_inserter(expected));
  std::vector<std::uint64_t> reported;
  for (const FreedBlock& freed : manager_->freed_blocks()) {
    reported.push_back(static_cast<std::uint64_t>(freed.pool) << 32 | static_cast<std::uint32_t>(freed.block.value));
  }
  std::sort(reported.begin(), reported.end());
  expect(reported == expected, "freed blocks: " + std::to_string(reported.size()) + " reported, " +
                                   std::to_string(expected.size()) + " became free");
  events_.freed_blocks += reported.size();
}

void CacheMachine::verify() {
  if (Status status = manager_->check_invariants(); !status.ok()) throw Divergence(status.to_string());
  expect(manager_->live_sequences() == static_cast<std::int32_t>(model_.sequences.size()), "live sequences");
  for (std::size_t pool = 0; pool < model_.pools.size(); ++pool) {
    const PoolUsage usage = manager_->usage(static_cast<int>(pool));
    const std::int64_t live = model_.live(pool);
    expect(usage.total == model_.totals[pool] && usage.live == live && usage.free == usage.total - live,
           "usage of pool " + std::to_string(pool));
    expect(usage.reserved == model_.reserved(pool), "reservations in pool " + std::to_string(pool));
  }
  for (const ModelSequence& sequence : model_.sequences) {
    expect(*manager_->length(sequence.id) == sequence.length(), "length");
    expect(manager_->slot(sequence.id)->value == sequence.slot, "slot");
  }
  // A prepared step has not run yet: the device still shows what was before it.
  for (const ModelSequence& sequence : step_ ? step_->before.sequences : model_.sequences) verify_content(sequence);
}

void CacheMachine::verify_content(const ModelSequence& sequence) {
  for (std::size_t pool = 0; pool < model_.pools.size(); ++pool) {
    const std::int64_t ratio = model_.pools[pool].ratio;
    for (std::int64_t row = 0; row < sequence.length() / ratio; ++row) {
      expect(device_->read_row(pool, sequence.slot, row) ==
                 sequence.tokens[static_cast<std::size_t>((row + 1) * ratio - 1)],
             "row " + std::to_string(row) + " of pool " + std::to_string(pool) + " in slot " +
                 std::to_string(sequence.slot) + " is not the sequence's own");
    }
    if (step_) continue;  // the manager's tables are one step ahead of the device's
    const std::vector<BlockId> blocks = *manager_->blocks(sequence.id, static_cast<int>(pool));
    for (std::size_t column = 0; column < blocks.size(); ++column) {
      expect(device_->block_at(pool, sequence.slot, static_cast<std::int32_t>(column)) == blocks[column].value,
             "device table and manager disagree");
    }
  }
  if (step_) return;
  expect(rings_serve(sequence, sequence.length()), "rings do not hold what the next token reads");
  expect(*manager_->earliest_truncation(sequence.id) == earliest_length(sequence), "earliest_truncation");
}

}  // namespace dsv4rt::property
