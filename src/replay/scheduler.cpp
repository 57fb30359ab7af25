// In the order of a step: plan who runs, admit, prepare (preempting where blocks are short), run, advance.
#include "replay/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/try.h"

namespace dsv4rt::replay {
namespace {

Status out_of_range(const char* option, std::int64_t value, const std::string& accepted) {
  return {StatusCode::kInvalidArgument,
          "scheduler: " + std::string(option) + " = " + std::to_string(value) + "; accepted: " + accepted};
}

Status check_options(const SchedulerOptions& options) {
  if (options.max_sequences < 1) return out_of_range("max_sequences", options.max_sequences, "1 or more");
  if (options.max_context_tokens < 1) {
    return out_of_range("max_context_tokens", options.max_context_tokens, "1 or more");
  }
  if (options.max_waiting < 1) return out_of_range("max_waiting", options.max_waiting, "1 or more");
  if (options.draft_tokens < 0 || options.draft_tokens > 64) {
    return out_of_range("draft_tokens", options.draft_tokens, "0 to 64");
  }
  if (options.aging_ns < 1) return out_of_range("aging_ns", options.aging_ns, "1 or more");
  const std::int64_t least = std::int64_t{options.max_sequences} * (1 + options.draft_tokens);
  if (options.step_tokens < least) {
    return out_of_range("step_tokens", options.step_tokens,
                        std::to_string(least) + " or more: max_sequences * (1 + draft_tokens)");
  }
  return {};
}

}  // namespace

Result<Scheduler> Scheduler::create(const SchedulerOptions& options, StepExecutor& executor,
                                    const RequestContent& content) {
  DSV4RT_RETURN_IF_ERROR(check_options(options));
  return Scheduler(options, executor, content);
}

Scheduler::Scheduler(const SchedulerOptions& options, StepExecutor& executor, const RequestContent& content)
    : options_(options),
      executor_(&executor),
      content_(&content),
      step_ids_(static_cast<std::size_t>(options.step_tokens)) {}

Status Scheduler::submit(const SchedulerRequest& request) {
  if (request.input_tokens < 1 || request.output_tokens < 0) {
    return {StatusCode::kInvalidArgument, std::to_string(request.input_tokens) + " prompt and " +
                                              std::to_string(request.output_tokens) +
                                              " output tokens; accepted: a prompt of 1 or more, outputs of 0 or more"};
  }
  if (request.input_tokens > options_.max_context_tokens ||
      request.output_tokens > options_.max_context_tokens - request.input_tokens) {
    return {StatusCode::kInvalidArgument,
            std::to_string(request.input_tokens) + " prompt and " + std::to_string(request.output_tokens) +
                " output tokens; accepted: up to " + std::to_string(options_.max_context_tokens) + " together"};
  }
  if (waiting() - preempted_ >= options_.max_waiting) {
    return {StatusCode::kResourceExhausted, "the queue is full: " + std::to_string(options_.max_waiting) + " wait"};
  }
  // In double first: a priority of any size must not overflow.
  const double key = static_cast<double>(request.arrival_ns) -
                     static_cast<double>(request.priority) * static_cast<double>(options_.aging_ns);
  constexpr double kMost = 4e18;
  const bool exact = key > -kMost && key < kMost;
  const std::int64_t key_ns = exact ? request.arrival_ns - request.priority * options_.aging_ns
                                    : static_cast<std::int64_t>(std::clamp(key, -kMost, kMost));
  waiting_.emplace(Order{.key_ns = key_ns, .serial = next_serial_++}, Entry{.request = request});
  return {};
}

Result<StepReport> Scheduler::step() {
  events_.clear();
  plan_running();
  DSV4RT_RETURN_IF_ERROR(admit_waiting());
  DSV4RT_RETURN_IF_ERROR(prepare());
  StepReport report;
  report.events_before = events_.size();
  if (!planned_.empty()) {
    if (Status ran = executor_->run(parts_); !ran.ok()) {
      const Status undone = executor_->rollback();
      return undone.ok() ? ran : Status{undone.code(), ran.message() + "; rolling back: " + undone.message()};
    }
    report.ran = true;
    DSV4RT_RETURN_IF_ERROR(advance(report));
  }
  report.events = events_;
  return report;
}

// ---- Planning -----------------------------------------------------------------------------------

void Scheduler::plan_running() {
  planned_.clear();
  budget_ = options_.step_tokens;
  for (auto entry = running_.begin(); entry != running_.end(); ++entry) {
    if (entry->second.decodes()) plan(entry);
  }
  for (auto entry = running_.begin(); entry != running_.end(); ++entry) {
    if (!entry->second.decodes()) plan(entry);
  }
}

void Scheduler::plan(Entries::iterator entry) {
  const Entry& state = entry->second;
  Planned planned{.entry = entry};
  const auto left = static_cast<std::int32_t>(std::min<std::int64_t>(state.known() - state.length, budget_));
  if (left == 0) return;
  planned.tokens = left;
  if (state.decodes()) {
    const std::int64_t useful = state.request.output_tokens - state.produced - 1;
    planned.drafts = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(std::min<std::int64_t>(options_.draft_tokens, useful), 0, budget_ - 1));
    planned.tokens += planned.drafts;
  }
  budget_ -= planned.tokens;
  planned_.push_back(planned);
}

// ---- Admission ----------------------------------------------------------------------------------

Status Scheduler::admit_waiting() {
  while (budget_ > 0 && !waiting_.empty()) {
    const auto head = next_waiting();
    const Entry& state = head->second;
    bool admitted = false;
    if (room_may_be_there_ && running() < options_.max_sequences) {
      DSV4RT_ASSIGN_OR_RETURN(admitted, admit(head));
    }
    if (admitted) continue;
    if (running_.empty()) {
      return {StatusCode::kInternal, "scheduler: request " + std::to_string(state.request.id) + " of " +
                                         std::to_string(state.known()) + " tokens does not fit an empty cache"};
    }
    const auto lower = preempted_ < options_.max_sequences ? victim(&*head) : running_.end();
    if (lower == running_.end()) return {};
    DSV4RT_RETURN_IF_ERROR(preempt(lower));
  }
  return {};
}

// Usually the first. Once more were preempted than can run at a time, new ones have to wait for these.
Scheduler::Entries::iterator Scheduler::next_waiting() {
  if (preempted_ <= options_.max_sequences) return waiting_.begin();
  return std::find_if(waiting_.begin(), waiting_.end(),
                      [](const Entries::value_type& entry) { return entry.second.was_preempted; });
}

// Whether there was room.
Result<bool> Scheduler::admit(Entries::iterator head) {
  Entry& state = head->second;
  SchedulerEvent event{.kind = SchedulerEvent::Kind::kAdmitted, .request = state.request.id};
  Status refused;
  if (state.saved) {
    const Result<SequenceId> restored = executor_->restore(*state.saved, reserve_tokens(state));
    if (restored.ok()) {
      state.sequence = *restored;
      state.saved.reset();
    } else {
      refused = restored.status();
    }
  } else {
    known_ids_.resize(static_cast<std::size_t>(state.known()));
    content_->token_ids(state.request.id, 0, known_ids_);
    const Result<SequenceStart> start = executor_->create(known_ids_, reserve_tokens(state));
    if (start.ok()) {
      state.sequence = start->sequence;
      state.length = start->hit_tokens;
      event.hit_tokens = start->hit_tokens;
      event.recomputed_tokens = std::max<std::int64_t>(0, state.lost_tokens - start->hit_tokens);
      state.lost_tokens = 0;
    } else {
      refused = start.status();
    }
  }
  if (refused.code() == StatusCode::kResourceExhausted) {
    room_may_be_there_ = false;
    return false;
  }
  DSV4RT_RETURN_IF_ERROR(refused);
  if (state.was_preempted) --preempted_;
  events_.push_back(event);
  plan(running_.insert(waiting_.extract(head)).position);
  return true;
}

std::int64_t Scheduler::reserve_tokens(const Entry& entry) const noexcept {
  // The last output is never run.
  const std::int64_t whole = entry.request.input_tokens + std::max<std::int64_t>(entry.request.output_tokens - 1, 0);
  return entry.was_preempted || options_.reservation == Reservation::kWhole ? whole : entry.request.input_tokens;
}

// ---- Preemption ---------------------------------------------------------------------------------

Scheduler::Entries::iterator Scheduler::victim(const Entries::value_type* above) {
  for (auto last = running_.end(); last != running_.begin();) {
    --last;
    if (last->second.was_preempted) continue;
    if (above == nullptr) return last;
    if (last->first < above->first) break;
    if (last->second.request.priority < above->second.request.priority) return last;
  }
  return running_.end();
}

Status Scheduler::preempt(Entries::iterator entry) {
  Entry& state = entry->second;
  SchedulerEvent event{.kind = SchedulerEvent::Kind::kPreempted, .request = state.request.id};
  if (options_.preemption == Preemption::kSnapshot && state.length > 0) {
    const Result<SavedSequence> saved = executor_->save(state.sequence);
    if (saved.ok()) {
      state.saved = *saved;
    } else if (saved.status().code() != StatusCode::kResourceExhausted) {
      return saved.status();
    }
  }
  event.snapshot = state.saved.has_value();
  if (!state.saved) {
    DSV4RT_RETURN_IF_ERROR(executor_->release(state.sequence));
    state.lost_tokens = state.length;
    state.length = 0;
  }
  state.sequence = {};
  state.was_preempted = true;
  room_may_be_there_ = true;
  ++preempted_;
  events_.push_back(event);
  for (const Planned& planned : planned_) {
    if (planned.entry == entry) budget_ += planned.tokens;
  }
  std::erase_if(planned_, [&](const Planned& planned) { return planned.entry == entry; });
  waiting_.insert(running_.extract(entry));
  return {};
}

// ---- The step -----------------------------------------------------------------------------------

// Sequences without a whole reservation may find blocks short; the last of them makes room. The others are never short.
Status Scheduler::prepare() {
  while (!planned_.empty()) {
    collect_token_ids();
    Status status = executor_->prepare(parts_);
    if (status.code() != StatusCode::kResourceExhausted) return status;
    const auto last = victim(nullptr);
    if (last == running_.end()) {
      return {StatusCode::kInternal, "scheduler: a step within its reservations was refused: " + status.message()};
    }
    DSV4RT_RETURN_IF_ERROR(preempt(last));
  }
  return {};
}

void Scheduler::collect_token_ids() {
  parts_.clear();
  std::size_t next = 0;
  for (Planned& planned : planned_) {
    const Entry& state = planned.entry->second;
    const std::span<std::int32_t> ids(step_ids_.data() + next, static_cast<std::size_t>(planned.tokens));
    next += ids.size();
    const auto drafts = static_cast<std::size_t>(planned.drafts);
    content_->token_ids(state.request.id, state.length, ids.first(ids.size() - drafts));
    planned.right_drafts =
        drafts == 0 ? 0 : content_->draft(state.request.id, state.known(), ids.subspan(ids.size() - drafts));
    parts_.push_back({.entry = {.sequence = state.sequence, .tokens = planned.tokens, .token_ids = ids.data()},
                      .context_tokens = state.length,
                      .prefill = !state.decodes(),
                      .request = state.request.id,
                      .prompt_tokens = state.request.input_tokens});
  }
}

Status Scheduler::advance(StepReport& report) {
  accepted_.clear();
  for (const Planned& planned : planned_) {
    accepted_.push_back(planned.tokens - planned.drafts + planned.right_drafts);
  }
  DSV4RT_RETURN_IF_ERROR(executor_->commit(accepted_));
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const Planned& planned = planned_[i];
    Entry& state = planned.entry->second;
    const bool prefill = parts_[i].prefill;
    (prefill ? report.prefill_sequences : report.decode_sequences) += 1;
    (prefill ? report.prefill_tokens : report.decode_tokens) += planned.tokens;
    report.drafted_tokens += planned.drafts;
    report.accepted_drafts += planned.right_drafts;
    const std::int64_t known = state.known();
    state.length += accepted_[i];
    if (state.length < known) continue;  // the prompt goes on
    if (state.produced < state.request.output_tokens) {
      const std::int32_t tokens = 1 + planned.right_drafts;
      state.produced += tokens;
      events_.push_back({.kind = SchedulerEvent::Kind::kTokens, .request = state.request.id, .output_tokens = tokens});
    }
    if (state.produced < state.request.output_tokens) continue;
    DSV4RT_RETURN_IF_ERROR(executor_->release(state.sequence));
    room_may_be_there_ = true;
    events_.push_back({.kind = SchedulerEvent::Kind::kFinished, .request = state.request.id});
    running_.erase(planned.entry);
  }
  return {};
}

Result<std::span<const SchedulerEvent>> Scheduler::abort_all() {
  events_.clear();
  planned_.clear();
  // One that cannot be released does not keep the others.
  Status failed;
  const auto note = [&failed](Status status) {
    if (failed.ok()) failed = std::move(status);
  };
  for (const auto& [order, state] : running_) {
    note(executor_->release(state.sequence));
    events_.push_back({.kind = SchedulerEvent::Kind::kAborted, .request = state.request.id});
  }
  for (const auto& [order, state] : waiting_) {
    if (state.saved) note(executor_->drop(*state.saved));
    events_.push_back({.kind = SchedulerEvent::Kind::kAborted, .request = state.request.id});
  }
  running_.clear();
  waiting_.clear();
  preempted_ = 0;
  room_may_be_there_ = true;
  DSV4RT_RETURN_IF_ERROR(failed);
  return std::span<const SchedulerEvent>(events_);
}

}  // namespace dsv4rt::replay
