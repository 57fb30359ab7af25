#include "replay/scheduler.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "support/expect_ok.h"

namespace dsv4rt::replay {
namespace {

using dsv4rt::test::fails_with;

// Room for `tokens` tokens, reserved or held, and records of every step.
class RecordingExecutor : public StepExecutor {
 public:
  explicit RecordingExecutor(std::int64_t tokens) : tokens_(tokens) {}

  Result<SequenceStart> create(std::span<const std::int32_t> token_ids, std::int64_t reserve_tokens) override {
    const std::int64_t length = static_cast<std::int64_t>(token_ids.size());
    if (used() + std::max(length, reserve_tokens) > tokens_) return Status{StatusCode::kResourceExhausted, "short"};
    const SequenceId id{.index = next_++, .generation = 1};
    held_[id] = {0, reserve_tokens};
    return SequenceStart{.sequence = id};
  }
  Status prepare(std::span<const StepPart> parts) override {
    std::int64_t more = 0;
    for (const StepPart& part : parts) {
      const Held& held = held_.at(part.entry.sequence);
      EXPECT_EQ(held.length, part.context_tokens);
      more += std::max<std::int64_t>(0, held.length + part.entry.tokens - std::max(held.length, held.reserved));
    }
    if (used() + more > tokens_) return {StatusCode::kResourceExhausted, "short"};
    for (const StepPart& part : parts) held_.at(part.entry.sequence).length += part.entry.tokens;
    return {};
  }
  Status run(std::span<const StepPart> parts) override {
    steps.emplace_back(parts.begin(), parts.end());
    return next_run;
  }
  Status commit(std::span<const std::int32_t> accepted) override {
    const auto& parts = steps.back();
    EXPECT_EQ(parts.size(), accepted.size());
    for (std::size_t i = 0; i < accepted.size(); ++i) {
      held_.at(parts[i].entry.sequence).length -= parts[i].entry.tokens - accepted[i];
    }
    return {};
  }
  Status rollback() override {
    ++rollbacks;
    for (const StepPart& part : steps.back()) held_.at(part.entry.sequence).length -= part.entry.tokens;
    return {};
  }
  Status release(SequenceId sequence) override {
    EXPECT_EQ(held_.erase(sequence), 1U);
    return {};
  }
  Result<SavedSequence> save(SequenceId sequence) override {
    saved_[saves] = held_.at(sequence).length;
    held_.erase(sequence);
    return SavedSequence(saves++);
  }
  Result<SequenceId> restore(SavedSequence saved, std::int64_t reserve_tokens) override {
    const std::int64_t length = saved_.at(saved.value);
    if (used() + std::max(length, reserve_tokens) > tokens_) return Status{StatusCode::kResourceExhausted, "short"};
    const SequenceId id{.index = next_++, .generation = 1};
    held_[id] = {length, reserve_tokens};
    saved_.erase(saved.value);
    return id;
  }
  Status drop(SavedSequence saved) override {
    EXPECT_EQ(saved_.erase(saved.value), 1U);
    return {};
  }

  [[nodiscard]] bool empty() const { return held_.empty() && saved_.empty(); }

  std::vector<std::vector<StepPart>> steps;
  Status next_run;
  int rollbacks = 0;
  std::int64_t saves = 0;

 private:
  struct Held {
    std::int64_t length = 0;
    std::int64_t reserved = 0;
  };
  [[nodiscard]] std::int64_t used() const {
    std::int64_t sum = 0;
    for (const auto& [id, held] : held_) sum += std::max(held.length, held.reserved);
    return sum;
  }
  std::int64_t tokens_;
  std::uint32_t next_ = 0;
  std::map<SequenceId, Held> held_;
  std::map<std::int64_t, std::int64_t> saved_;
};

// Ids are positions; a fixed number of drafts is right.
struct CountingContent : RequestContent {
  void token_ids(std::int64_t, std::int64_t first, std::span<std::int32_t> ids) const override {
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(first) + static_cast<int>(i);
  }
  std::int32_t draft(std::int64_t request, std::int64_t first, std::span<std::int32_t> ids) const override {
    token_ids(request, first, ids);
    return std::min(right, static_cast<std::int32_t>(ids.size()));
  }
  std::int32_t right = 0;
};

struct Rig {
  explicit Rig(const SchedulerOptions& options, std::int64_t tokens = 1'000'000)
      : executor(tokens), scheduler(*Scheduler::create(options, executor, content)) {}

  void submit(std::int64_t id, std::int64_t input, std::int64_t output, std::int32_t priority = 0,
              std::int64_t arrival_ns = 0) {
    EXPECT_OK(scheduler.submit(
        {.id = id, .input_tokens = input, .output_tokens = output, .priority = priority, .arrival_ns = arrival_ns}));
  }
  StepReport step() {
    const auto report = scheduler.step();
    EXPECT_OK(report);
    for (const SchedulerEvent& event : report->events) {
      log.push_back(event);
      if (event.kind == SchedulerEvent::Kind::kAdmitted) admitted.push_back(event.request);
      if (event.kind == SchedulerEvent::Kind::kFinished) finished.push_back(event.request);
      if (event.kind == SchedulerEvent::Kind::kPreempted) preempted.push_back(event.request);
    }
    return *report;
  }
  void run_out() {
    for (int i = 0; i < 10'000 && !scheduler.idle(); ++i) step();
    EXPECT_TRUE(scheduler.idle());
    EXPECT_TRUE(executor.empty());
  }

  CountingContent content;
  RecordingExecutor executor;
  Scheduler scheduler;
  std::vector<SchedulerEvent> log;
  std::vector<std::int64_t> admitted;
  std::vector<std::int64_t> finished;
  std::vector<std::int64_t> preempted;
};

constexpr SchedulerOptions kOptions{
    .max_sequences = 4, .max_context_tokens = 1000, .step_tokens = 64, .max_waiting = 8};

TEST(Scheduler, LongPromptsAreCutIntoTheBudgetAndDecodesComeFirst) {
  Rig rig(kOptions);
  rig.submit(1, 10, 20);
  EXPECT_EQ(rig.step().prefill_tokens, 10);
  rig.submit(2, 150, 5);
  // 1 decoded token and 63 of the prompt, three times.
  for (const std::int32_t chunk : {63, 63, 24}) {
    const StepReport report = rig.step();
    EXPECT_EQ(report.decode_sequences, 1);
    EXPECT_EQ(report.decode_tokens, 1);
    EXPECT_EQ(report.prefill_tokens, chunk);
    const auto& parts = rig.executor.steps.back();
    EXPECT_FALSE(parts[0].prefill);
    EXPECT_TRUE(parts[1].prefill);
  }
  EXPECT_EQ(rig.step().decode_sequences, 2);
  rig.run_out();
  EXPECT_EQ(rig.finished, (std::vector<std::int64_t>{2, 1}));
}

TEST(Scheduler, OnePromptAtATimeIsPartlyRun) {
  Rig rig(kOptions);
  for (std::int64_t id = 0; id < 4; ++id) rig.submit(id, 100, 3);
  while (!rig.scheduler.idle()) {
    const StepReport report = rig.step();
    EXPECT_LE(report.prefill_tokens + report.decode_tokens, 64);
    std::int32_t unfinished = 0;
    for (const StepPart& part : rig.executor.steps.back()) {
      unfinished += part.prefill && part.context_tokens + part.entry.tokens < 100 ? 1 : 0;
    }
    EXPECT_LE(unfinished, 1);
  }
  EXPECT_EQ(rig.finished, (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(Scheduler, TokenIdsAreThoseOfThePositions) {
  Rig rig(kOptions);
  rig.submit(1, 100, 4);
  std::vector<std::int32_t> seen;
  while (!rig.scheduler.idle()) {
    rig.step();
    // Ids live in the scheduler until its next step.
    const StepPart& part = rig.executor.steps.back()[0];
    seen.insert(seen.end(), part.entry.token_ids, part.entry.token_ids + part.entry.tokens);
  }
  ASSERT_EQ(seen.size(), 103U);  // the last output is not run
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<std::int32_t>(i));
}

TEST(Scheduler, EqualPrioritiesAreServedInOrderAndHigherOnesEarlier) {
  SchedulerOptions options = kOptions;
  options.max_sequences = 1;
  options.aging_ns = 1000;
  Rig rig(options);
  rig.submit(1, 10, 2, 0, 0);
  rig.submit(2, 10, 2, 0, 10);
  rig.submit(3, 10, 2, 1, 500);   // worth 1000 ns
  rig.submit(4, 10, 2, 1, 5000);  // too late to pass anybody
  rig.submit(5, 10, 2, 0, 3999);
  rig.run_out();
  EXPECT_EQ(rig.admitted, (std::vector<std::int64_t>{3, 1, 2, 5, 4}));
}

TEST(Scheduler, AHigherPriorityTakesThePlaceOfALowerOneOnce) {
  SchedulerOptions options = kOptions;
  options.max_sequences = 1;
  Rig rig(options);
  rig.submit(1, 10, 50);
  rig.step();
  rig.submit(2, 10, 3, 1);
  rig.step();
  EXPECT_EQ(rig.preempted, (std::vector<std::int64_t>{1}));
  EXPECT_EQ(rig.scheduler.preempted(), 1);
  while (rig.finished.empty()) rig.step();
  rig.step();  // 1 is back
  rig.submit(3, 10, 3, 1);
  rig.run_out();
  EXPECT_EQ(rig.preempted, (std::vector<std::int64_t>{1}));
  EXPECT_EQ(rig.finished, (std::vector<std::int64_t>{2, 1, 3}));
}

TEST(Scheduler, AdmissionWaitsForRoomAndKeepsTheOrder) {
  Rig rig(kOptions, 200);
  rig.submit(1, 50, 100);  // reserves 149
  rig.submit(2, 40, 60);   // 99: waits for 1
  rig.submit(3, 10, 2);    // would fit, but is later
  rig.step();
  EXPECT_EQ(rig.admitted, (std::vector<std::int64_t>{1}));
  rig.run_out();
  EXPECT_EQ(rig.admitted, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_TRUE(rig.preempted.empty());
}

TEST(Scheduler, ShortBlocksPreemptTheLatestWhichComesBackForGood) {
  for (const Preemption kind : {Preemption::kRecompute, Preemption::kSnapshot}) {
    SchedulerOptions options = kOptions;
    options.reservation = Reservation::kPrompt;
    options.preemption = kind;
    Rig rig(options, 100);
    rig.submit(1, 20, 70);
    rig.submit(2, 20, 70);
    rig.submit(3, 20, 70);
    rig.run_out();
    EXPECT_EQ(rig.preempted, (std::vector<std::int64_t>{3, 2}));
    EXPECT_EQ(rig.executor.saves, kind == Preemption::kSnapshot ? 2 : 0);
    std::map<std::int64_t, std::int64_t> outputs;
    std::int64_t recomputed = 0;
    for (const SchedulerEvent& event : rig.log) {
      outputs[event.request] += event.output_tokens;
      recomputed += event.recomputed_tokens;
    }
    for (const auto& [id, tokens] : outputs) EXPECT_EQ(tokens, 70) << id;
    EXPECT_EQ(recomputed > 0, kind == Preemption::kRecompute);
  }
}

TEST(Scheduler, DraftsAreNeverMoreThanCanBeUsed) {
  SchedulerOptions options = kOptions;
  options.draft_tokens = 3;
  for (const std::int32_t right : {0, 1, 3}) {
    Rig rig(options);
    rig.content.right = right;
    rig.submit(1, 10, 9);
    std::int64_t tokens = 0;
    while (!rig.scheduler.idle()) {
      const StepReport report = rig.step();
      EXPECT_LE(report.drafted_tokens, 3);
      for (const SchedulerEvent& event : report.events) tokens += event.output_tokens;
    }
    EXPECT_EQ(tokens, 9);
    // No step reaches beyond the reservation of prompt and outputs.
    for (const auto& parts : rig.executor.steps) {
      EXPECT_LE(parts[0].context_tokens + parts[0].entry.tokens, 10 + 9 - 1);
    }
  }
}

TEST(Scheduler, AFullQueueRefusesAndLeavesNoTrace) {
  SchedulerOptions options = kOptions;
  options.max_waiting = 2;
  Rig rig(options);
  rig.submit(1, 10, 2);
  rig.submit(2, 10, 2);
  EXPECT_TRUE(fails_with(rig.scheduler.submit({.id = 3, .input_tokens = 1, .output_tokens = 1}),
                         StatusCode::kResourceExhausted, {"queue is full", "2"}));
  EXPECT_EQ(rig.scheduler.waiting(), 2);
  EXPECT_TRUE(fails_with(rig.scheduler.submit({.id = 4, .input_tokens = 990, .output_tokens = 11}),
                         StatusCode::kInvalidArgument, {"990", "11", "1000"}));
  EXPECT_TRUE(fails_with(rig.scheduler.submit({.id = 5, .input_tokens = 0, .output_tokens = 11}),
                         StatusCode::kInvalidArgument, {"0 prompt"}));
  rig.run_out();
  EXPECT_EQ(rig.finished, (std::vector<std::int64_t>{1, 2}));
}

TEST(Scheduler, AFailedStepIsRolledBackAndEverythingCanBeAborted) {
  Rig rig(kOptions);
  rig.submit(1, 10, 5);
  rig.step();
  rig.submit(2, 10, 5);
  rig.executor.next_run = {StatusCode::kFaulted, "the device is gone"};
  EXPECT_TRUE(fails_with(rig.scheduler.step(), StatusCode::kFaulted, {"gone"}));
  EXPECT_EQ(rig.executor.rollbacks, 1);
  rig.submit(3, 10, 5);
  const auto aborted = rig.scheduler.abort_all();
  ASSERT_OK(aborted);
  EXPECT_EQ(aborted->size(), 3U);
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_TRUE(rig.executor.empty());
}

TEST(Scheduler, OptionsOutOfRangeAreNamed) {
  const auto refused = [](SchedulerOptions options) {
    RecordingExecutor executor(1);
    const CountingContent content;
    return Scheduler::create(options, executor, content).status();
  };
  SchedulerOptions options = kOptions;
  options.step_tokens = 7;
  options.draft_tokens = 1;
  EXPECT_TRUE(fails_with(refused(options), StatusCode::kInvalidArgument, {"step_tokens", "7", "8"}));
  options = kOptions;
  options.max_waiting = 0;
  EXPECT_TRUE(fails_with(refused(options), StatusCode::kInvalidArgument, {"max_waiting"}));
  options = kOptions;
  options.aging_ns = 0;
  EXPECT_TRUE(fails_with(refused(options), StatusCode::kInvalidArgument, {"aging_ns"}));
}

}  // namespace
}  // namespace dsv4rt::replay
