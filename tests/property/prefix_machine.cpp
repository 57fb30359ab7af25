#include "prefix_machine.h"

#include <algorithm>
#include <numeric>
#include <ostream>
#include <utility>

#include "cache_design.h"

namespace dsv4rt::property {
namespace {

constexpr std::uint32_t kStreams = 10;
constexpr std::uint32_t kNoSalt = 1000;  // sequences without ids: from here on, each its own

constexpr const char* kNames[] = {"create",
                                  "create",
                                  "create",
                                  "create",
                                  "create without ids",
                                  "fork",
                                  "branch",
                                  "branch",
                                  "truncate",
                                  "truncate to boundary",
                                  "release",
                                  "release",
                                  "release",
                                  "pin",
                                  "unpin",
                                  "evict",
                                  "prepare",
                                  "prepare",
                                  "prepare",
                                  "prepare",
                                  "commit",
                                  "commit",
                                  "commit",
                                  "commit",
                                  "commit",
                                  "rollback",
                                  "rollback",
                                  "started",
                                  "commit or create",
                                  "commit or create",
                                  "release",
                                  "prepare"};
constexpr std::size_t kKinds = std::size(kNames);

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

// Mostly one and the same, so that hits are common.
std::uint32_t salt_of(const Operation& op) {
  return op.c % 7 < 5 ? 0 : op.c % 7 - 4;
}

std::array<std::byte, 4> salt_bytes(std::uint32_t salt) {
  return {static_cast<std::byte>(salt), static_cast<std::byte>(salt >> 8), std::byte{1}, std::byte{2}};
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Operation& op) {
  return out << kNames[op.kind % kKinds] << " {" << int{op.kind} << ", " << op.a << ", " << op.b << ", " << op.c << "}";
}

std::ostream& operator<<(std::ostream& out, const PrefixSetup& setup) {
  out << "ratios";
  for (const std::int32_t ratio : setup.ratios) out << " " << ratio;
  return out << ", window " << setup.window << ", rows per block " << setup.csa_rows_per_block << " / "
             << setup.hca_rows_per_block << ", drafts " << setup.draft_budget << ", sequences " << setup.max_sequences
             << ", context " << setup.max_context << ", step " << setup.max_step_tokens << ", states "
             << setup.boundary_states << ", quota " << setup.quota_units << ", contexts " << setup.contexts
             << ", spare blocks " << setup.spare_blocks;
}

PrefixMachine::PrefixMachine(const PrefixSetup& setup, PrefixCounts& counts) : setup_(setup), counts_(counts) {
  CacheDesign design = design_of(setup);
  const CacheLayout& layout = design.layout;
  schedule_ = design.schedule;
  design.limits.pool_tokens = std::int64_t{setup.max_context} * setup.contexts;
  design.limits.boundary_states = setup.boundary_states;
  MemoryPlan plan = take(plan_memory(design.config, schedule_, layout, design.limits));
  for (std::size_t pool = 0; pool < layout.pools().size(); ++pool) {
    const PoolSpec& spec = layout.pools()[pool];
    pools_.push_back({spec.ratio, spec.ratio_class, spec.shape.rows});
    const std::int64_t rows = setup.max_context / spec.ratio;
    const std::int64_t blocks = (rows + spec.shape.rows - 1) / spec.shape.rows;
    plan.pool_blocks[pool] = 1 + blocks * setup.contexts + setup.spare_blocks;
  }
  manager_ = take(KVCacheManager::create(schedule_, layout, plan,
                                         {.engine = {},
                                          .policy = {},
                                          .tenant_quota_tokens = std::int64_t{kUnit} * setup.quota_units,
                                          .record_events = true}));
  manager_->record_freed_blocks();
  taken_.resize(pools_.size());
  std::vector<std::int64_t> rings{setup.window + setup.draft_budget};
  std::vector<std::int64_t> kept{setup.window - 1};
  for (const std::int32_t ratio : schedule_.ratios()) {
    rings.push_back((ratio == 4 ? 2 * ratio : ratio) + setup.draft_budget);
    kept.push_back(ratio == 4 ? ratio : 0);
  }
  device_ = std::make_unique<FakeDevice>(pools_, rings, setup.max_sequences, *manager_);
  device_->make_states(setup.boundary_states, kept);
}

void PrefixMachine::apply(const Operation& op) {
  ++counts_.operations;
  std::vector<std::int64_t> free;
  note_free(free);
  std::fill(taken_.begin(), taken_.end(), 0);
  const std::string name = kNames[op.kind % kKinds];
  if (name == "create") create(op);
  if (name == "create without ids") create_without_ids(op);
  if (name == "fork") fork(op);
  if (name == "branch") branch(op);
  if (name == "truncate") truncate(op);
  if (name == "truncate to boundary") truncate_to_boundary(op);
  if (name == "release") release(op);
  if (name == "pin") pin(op);
  if (name == "unpin") unpin(op);
  if (name == "evict") evict(op);
  if (name == "prepare") step_ ? commit(op) : prepare(op);
  if (name == "commit") step_ ? commit(op) : prepare(op);
  if (name == "commit or create") step_ ? commit(op) : create(op);
  if (name == "rollback") rollback(op, StepProgress::kPrepared);
  if (name == "started") rollback(op, StepProgress::kStarted);
  check_freed(free);
  verify();
}

// ---- Ids ----------------------------------------------------------------------------------------

// Two families of five; those of a family part at 0 .. 400 tokens.
std::int32_t PrefixMachine::stream_id(std::uint32_t stream, std::int64_t position) const {
  constexpr std::int64_t kParts[] = {1 << 20, 128, 200, 256, 400};
  const std::uint64_t own = position >= kParts[stream % 5] ? stream : stream / 5;
  return static_cast<std::int32_t>(mix(own + 17, static_cast<std::uint64_t>(position)) % 30000);
}

std::vector<std::int32_t> PrefixMachine::prompt(const Operation& op) const {
  const std::uint32_t stream = op.a % kStreams;
  const std::int64_t length = op.b % 4 == 0 ? op.b / 4 % (setup_.max_context + 1)
                                            : std::min<std::int64_t>(setup_.max_context, 129 + op.b / 4 % 500);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < length; ++i) ids.push_back(stream_id(stream, i));
  return ids;
}

PrefixPolicy PrefixMachine::policy(std::uint16_t value) const {
  switch (value % 8) {
    case 0:
      return {.interval_tokens = 0};
    case 1:
      return {.interval_tokens = 256};
    case 2:
      return {.interval_tokens = 0, .prompt_end = false, .output_end = false, .fork_points = false};
    case 3:
      return {.interval_tokens = 0, .prompt_end = false, .output_end = true};
    default:
      return {.interval_tokens = 1};
  }
}

void PrefixMachine::add(Sequence& sequence, std::int32_t id) {
  const std::uint64_t before = sequence.tags.empty() ? mix(sequence.salt, 99) : sequence.tags.back();
  sequence.ids.push_back(id);
  sequence.tags.push_back(mix(before, static_cast<std::uint64_t>(id)));
}

void PrefixMachine::cut(Sequence& sequence, std::int64_t length) {
  sequence.ids.resize(static_cast<std::size_t>(length));
  sequence.tags.resize(static_cast<std::size_t>(length));
}

// ---- Sequences ----------------------------------------------------------------------------------

void PrefixMachine::begin(SequenceId id, std::uint32_t salt, std::uint32_t stream, std::int64_t reserve,
                          std::vector<std::int32_t> ids) {
  Sequence sequence{.id = id,
                    .slot = manager_->slot(id)->value,
                    .reserve_tokens = reserve,
                    .salt = salt,
                    .stream = stream,
                    .ids = {},
                    .tags = {}};
  for (const std::int32_t token : ids) add(sequence, token);
  sequences_.push_back(std::move(sequence));
}

void PrefixMachine::restore_slot(const Sequence& sequence, const BoundaryCopyPlan& copy) {
  expect(copy.slot == sequence.slot && copy.boundary == sequence.length(), "restore names slot and length");
  std::vector<std::int32_t> ids(10'000);
  std::vector<std::int32_t> columns(pools_.size());
  ids.resize(manager_->table_row(StateSlotId(sequence.slot), ids, columns));
  expect(static_cast<std::size_t>(std::accumulate(columns.begin(), columns.end(), 0)) == ids.size(), "table_row");
  device_->write_table_row(sequence.slot, ids, columns);
  device_->copy_in(copy);
}

void PrefixMachine::create(const Operation& op) {
  std::vector<std::int32_t> ids = prompt(op);
  const std::uint32_t salt = salt_of(op);
  const std::int64_t reserve = op.c % 5 == 0 ? op.c / 5 % (setup_.max_context + 1) : 0;
  const std::array<std::byte, 4> bytes = salt_bytes(salt);
  // Sharing the last block of a sequence with a reservation makes it owe a copy.
  const bool reserved = reserve > 0 || std::any_of(sequences_.begin(), sequences_.end(),
                                                   [](const Sequence& other) { return other.reserve_tokens > 0; });
  const PrefixLookup lookup = take(manager_->prefix_lookup(ids, bytes));
  const Status admitted = manager_->can_admit(reserve);
  const PrefixStats stats = manager_->prefix_stats();
  const Result<PrefixStart> start =
      manager_->create_sequence(ids, {.salt = bytes, .reserve_tokens = reserve, .policy = policy(op.c / 16)});
  if (step_) return expect_code(start.status(), StatusCode::kFailedPrecondition, "create");
  if (!start.ok()) {
    expect_code(start.status(), StatusCode::kResourceExhausted, "create");
    return expect(!admitted.ok(), "refused although an empty sequence would be admitted");
  }
  ++counts_.creates;
  expect(start->hit_tokens <= lookup.hit_tokens && lookup.hit_tokens <= lookup.matched_tokens, "more than a lookup");
  expect(start->hit_tokens == lookup.hit_tokens || reserved, "a shorter hit although nothing is reserved");
  expect(start->hit_tokens % kUnit == 0 &&
             (start->hit_tokens == 0 || start->hit_tokens < static_cast<std::int64_t>(ids.size())),
         "hits are whole units and leave a token to run");
  const PrefixStats after = manager_->prefix_stats();
  expect(after.lookups == stats.lookups + 1 && after.hit_tokens == stats.hit_tokens + start->hit_tokens &&
             after.hit_tokens + after.missed_tokens ==
                 stats.hit_tokens + stats.missed_tokens + static_cast<std::int64_t>(ids.size()),
         "hits and misses are counted");
  counts_.hits += start->hit_tokens > 0 ? 1 : 0;
  counts_.hit_tokens += static_cast<std::uint64_t>(start->hit_tokens);
  counts_.shorter_hits += start->hit_tokens < lookup.hit_tokens ? 1 : 0;
  ids.resize(static_cast<std::size_t>(start->hit_tokens));
  begin(start->sequence, salt, op.a % kStreams, reserve, std::move(ids));
  if (start->hit_tokens > 0) restore_slot(sequences_.back(), start->restore);
}

void PrefixMachine::create_without_ids(const Operation& op) {
  const std::int64_t reserve = op.a % 3 == 0 ? op.b % (setup_.max_context + 1) : 0;
  const Result<SequenceId> id = manager_->create_sequence(reserve);
  if (step_) return expect_code(id.status(), StatusCode::kFailedPrecondition, "create without ids");
  if (!id.ok()) return expect_code(id.status(), StatusCode::kResourceExhausted, "create without ids");
  begin(*id, kNoSalt + static_cast<std::uint32_t>(++junk_), op.c % kStreams, reserve, {});
}

void PrefixMachine::fork(const Operation& op) {
  if (sequences_.empty()) return;
  const std::size_t parent = op.a % sequences_.size();
  const std::int64_t reserve = op.b % 4 == 0 ? op.b / 4 % (setup_.max_context + 1) : 0;
  const Result<ForkResult> result = manager_->fork(sequences_[parent].id, reserve);
  if (step_) return expect_code(result.status(), StatusCode::kFailedPrecondition, "fork");
  if (!result.ok()) return expect_code(result.status(), StatusCode::kResourceExhausted, "fork");
  ++counts_.forks;
  device_->fork(result->source.value, result->target.value);
  for (const BoundaryCopyPlan& copy : manager_->boundary_copies()) device_->copy_out(copy);
  Sequence child = sequences_[parent];
  child.id = result->child;
  child.slot = result->target.value;
  child.reserve_tokens = reserve;
  child.stream = op.c % kStreams;
  sequences_.push_back(std::move(child));
}

void PrefixMachine::branch(const Operation& op) {
  if (sequences_.empty()) return;
  const std::size_t parent = op.a % sequences_.size();
  const std::int64_t length = op.b % (sequences_[parent].length() / kUnit + 1) * kUnit;
  const std::int64_t reserve = op.c % 4 == 0 ? op.c / 4 % (setup_.max_context + 1) : 0;
  const Result<PrefixStart> start = manager_->branch(sequences_[parent].id, length, reserve);
  if (step_) return expect_code(start.status(), StatusCode::kFailedPrecondition, "branch");
  if (!start.ok()) {
    counts_.branches_without_state += start.status().code() == StatusCode::kFailedPrecondition ? 1 : 0;
    return expect(start.status().code() == StatusCode::kFailedPrecondition ||
                      start.status().code() == StatusCode::kResourceExhausted,
                  "branch: " + start.status().to_string());
  }
  ++counts_.branches;
  expect(start->hit_tokens == length, "a branch begins where it was asked to");
  std::vector<std::int32_t> ids(sequences_[parent].ids.begin(), sequences_[parent].ids.begin() + length);
  begin(start->sequence, sequences_[parent].salt, op.c % kStreams, reserve, std::move(ids));
  restore_slot(sequences_.back(), start->restore);
}

void PrefixMachine::truncate(const Operation& op) {
  if (sequences_.empty()) return;
  Sequence& sequence = sequences_[op.a % sequences_.size()];
  const std::int64_t length = op.c % 8 == 0 ? 0 : std::max<std::int64_t>(0, sequence.length() - op.b % 12);
  const Status status = manager_->truncate(sequence.id, length);
  if (step_) return expect_code(status, StatusCode::kFailedPrecondition, "truncate");
  if (status.ok()) return cut(sequence, length);
  expect(status.code() == StatusCode::kFailedPrecondition ||
             (status.code() == StatusCode::kResourceExhausted && sequence.reserve_tokens > 0),
         "truncate: " + status.to_string());
}

void PrefixMachine::truncate_to_boundary(const Operation& op) {
  if (sequences_.empty()) return;
  Sequence& sequence = sequences_[op.a % sequences_.size()];
  const std::int64_t length = op.b % (sequence.length() / kUnit + 1) * kUnit;
  const Result<BoundaryCopyPlan> copy = manager_->truncate_to_boundary(sequence.id, length);
  if (step_) return expect_code(copy.status(), StatusCode::kFailedPrecondition, "truncate to boundary");
  if (!copy.ok()) {
    return expect(copy.status().code() == StatusCode::kFailedPrecondition ||
                      (copy.status().code() == StatusCode::kResourceExhausted && sequence.reserve_tokens > 0),
                  "truncate to boundary: " + copy.status().to_string());
  }
  ++counts_.cuts_to_boundaries;
  cut(sequence, length);
  device_->copy_in(*copy);
}

void PrefixMachine::release(const Operation& op) {
  if (sequences_.empty()) return;
  const std::size_t index = op.a % sequences_.size();
  const Status status = manager_->release(sequences_[index].id);
  if (step_) return expect_code(status, StatusCode::kFailedPrecondition, "release");
  expect_code(status, StatusCode::kOk, "release");
  ++counts_.sequences_ended;
  sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(index));
}

// ---- What people ask for ------------------------------------------------------------------------

void PrefixMachine::pin(const Operation& op) {
  if (pins_.size() > 3) return unpin(op);
  std::vector<std::int32_t> ids = prompt(op);
  const std::uint32_t salt = salt_of(op);
  const Result<std::int64_t> pinned = manager_->pin_prefix(ids, salt_bytes(salt));
  if (step_) return expect_code(pinned.status(), StatusCode::kFailedPrecondition, "pin");
  if (!pinned.ok()) {
    ++counts_.refused_pins;
    expect_code(pinned.status(), StatusCode::kResourceExhausted, "pin");
    return expect(anything_reserved(), "a pin is refused although nothing is reserved");
  }
  if (*pinned == 0) return;
  ++counts_.pins;
  ids.resize(static_cast<std::size_t>(*pinned));
  pins_.push_back({salt, std::move(ids)});
}

void PrefixMachine::unpin(const Operation& op) {
  if (pins_.empty()) return;
  const auto chosen = pins_.begin() + op.a % static_cast<std::ptrdiff_t>(pins_.size());
  const Result<std::int64_t> unpinned = manager_->unpin_prefix(chosen->ids, salt_bytes(chosen->salt));
  if (step_) return expect_code(unpinned.status(), StatusCode::kFailedPrecondition, "unpin");
  expect(unpinned.ok() && *unpinned == static_cast<std::int64_t>(chosen->ids.size()), "unpin finds what was pinned");
  ++counts_.unpins;
  pins_.erase(chosen);
}

void PrefixMachine::evict(const Operation& op) {
  if (op.c % 16 == 0) {
    return expect_code(manager_->clear_prefixes(), step_ ? StatusCode::kFailedPrecondition : StatusCode::kOk, "clear");
  }
  const std::vector<std::int32_t> ids = prompt(op);
  const std::array<std::byte, 4> salt = salt_bytes(salt_of(op));
  const std::int64_t matched = take(manager_->prefix_lookup(ids, salt)).matched_tokens;
  const Result<std::int64_t> evicted = manager_->evict_prefix(ids, salt);
  if (step_) return expect_code(evicted.status(), StatusCode::kFailedPrecondition, "evict");
  expect(evicted.ok() && *evicted % kUnit == 0, "evict gives whole units");
  expect(take(manager_->prefix_lookup(ids, salt)).matched_tokens >= matched - *evicted, "more left than was said");
}

}  // namespace dsv4rt::property
