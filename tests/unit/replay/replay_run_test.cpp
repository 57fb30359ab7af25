#include "replay/replay_run.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "replay_fixture.h"
#include "support/temp_directory.h"

namespace dsv4rt::replay::test {
namespace {

using Json = nlohmann::json;
using dsv4rt::test::TempDirectory;

std::string without_wall(const std::string& summary) {
  Json json = Json::parse(summary);
  for (auto it = json.begin(); it != json.end();) it = it.key().starts_with("wall_") ? json.erase(it) : std::next(it);
  return json.dump();
}

struct Outputs {
  RequestTotals totals;
  std::string summary;
  std::string requests;
  std::string timeline;
  std::string metrics;
};

Outputs run_with_files(ModelReplayOptions options, const Load& load) {
  const TempDirectory directory;
  options.replay.summary_file = directory / "summary.json";
  options.replay.requests_file = directory / "requests.jsonl";
  options.replay.timeline_file = directory / "timeline.json";
  options.replay.metrics_file = directory / "metrics.txt";
  const auto summary = run_model(generate(load), options);
  EXPECT_OK(summary);
  if (!summary.ok()) return {};
  return {.totals = summary->metrics.requests(),
          .summary = without_wall(file_text(options.replay.summary_file)),
          .requests = file_text(options.replay.requests_file),
          .timeline = file_text(options.replay.timeline_file),
          .metrics = file_text(options.replay.metrics_file)};
}

TEST(ReplayRun, EveryRequestEndsOnceAndTokensAddUp) {
  const Load load{.requests = 300, .every_ms = 5, .shared_prompts = 4};
  const TempDirectory directory;
  ModelReplayOptions options = small_options();
  options.replay.scheduler.max_waiting = 20;
  options.replay.requests_file = directory / "requests.jsonl";
  const auto summary = run_model(generate(load), options);
  ASSERT_OK(summary);
  const RequestTotals& totals = summary->metrics.requests();
  EXPECT_EQ(totals.arrived, 300);
  EXPECT_EQ(totals.finished + totals.rejected + totals.aborted, 300);
  EXPECT_GT(totals.finished, 0);
  EXPECT_GT(totals.rejected, 0);
  std::int64_t finished = 0;
  std::int64_t input = 0;
  std::int64_t output = 0;
  std::vector<bool> seen(300);
  for (const std::string& line : file_lines(options.replay.requests_file)) {
    const Json json = Json::parse(line);
    const auto index = json.at("metadata").at("session_num").get<std::int64_t>();
    EXPECT_FALSE(seen[static_cast<std::size_t>(index)]);
    seen[static_cast<std::size_t>(index)] = true;
    const Request original = generated(load, index);
    if (json.at("metadata").at("outcome") == "finished") {
      ++finished;
      EXPECT_TRUE(json.at("error").is_null());
      EXPECT_EQ(json.at("metrics").at("output_sequence_length").at("value"), original.output_tokens);
      input += original.input_tokens;
      output += original.output_tokens;
    } else {
      EXPECT_EQ(json.at("error").at("code"), "queue full");
    }
  }
  EXPECT_EQ(finished, totals.finished);
  EXPECT_EQ(input, totals.input_tokens);
  EXPECT_EQ(output, totals.output_tokens);
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](bool once) { return once; }));
  // What was run is what was not hit.
  EXPECT_EQ(summary->metrics.steps().prefill_tokens, totals.admitted_input_tokens - totals.hit_tokens);
}

TEST(ReplayRun, TheSameSeedGivesTheSameBytes) {
  const Load load{.requests = 200, .every_ms = 10, .shared_prompts = 5, .priorities = 3};
  ModelReplayOptions options = small_options(8, 8192);
  options.replay.arrivals.jitter_ms = 30;
  options.replay.scheduler.draft_tokens = 2;
  options.replay.scheduler.reservation = Reservation::kPrompt;
  options.replay.acceptance = 0.6;
  options.replay.service_levels.ttft_ms = 200;
  const Outputs a = run_with_files(options, load);
  const Outputs b = run_with_files(options, load);
  EXPECT_EQ(a.summary, b.summary);
  EXPECT_EQ(a.requests, b.requests);
  EXPECT_EQ(a.timeline, b.timeline);
  EXPECT_EQ(a.metrics, b.metrics);
  options.replay.seed = 2;
  const Outputs other = run_with_files(options, load);
  EXPECT_NE(a.summary, other.summary);
  EXPECT_NE(a.requests, other.requests);
  EXPECT_NE(a.timeline, other.timeline);
}

TEST(ReplayRun, SharedPromptsHitAndOthersDoNot) {
  const auto shared = run_model(generate({.shared_prompts = 2}), small_options());
  ASSERT_OK(shared);
  EXPECT_GT(shared->metrics.requests().hit_tokens, 0);
  EXPECT_GT(Json::parse(summary_json(*shared)).at("tokens").at("hit_rate").get<double>(), 0.1);
  const auto unknown = run_model(generate({.shared_prompts = 0}), small_options());
  ASSERT_OK(unknown);
  EXPECT_EQ(unknown->metrics.requests().hit_tokens, 0);
  const Json tokens = Json::parse(summary_json(*unknown)).at("tokens");
  EXPECT_EQ(tokens.at("prefix_identity"), "none");
  EXPECT_TRUE(tokens.at("hit_rate").is_null());  // not 0: the log does not say
  const auto without_cache = run_model(generate({.shared_prompts = 2}), small_options(8, 0, 0));
  ASSERT_OK(without_cache);
  EXPECT_EQ(without_cache->metrics.requests().hit_tokens, 0);
}

TEST(ReplayRun, PromptReservationsPreemptAndBothKindsComeBack) {
  const Load load{.requests = 60, .every_ms = 1, .most_input = 300, .most_output = 900};
  for (const Preemption kind : {Preemption::kRecompute, Preemption::kSnapshot}) {
    ModelReplayOptions options = small_options(8, 4096);
    options.replay.scheduler.reservation = Reservation::kPrompt;
    options.replay.scheduler.preemption = kind;
    options.replay.check_every_steps = 1;
    const auto summary = run_model(generate(load), options);
    ASSERT_OK(summary);
    const RequestTotals& totals = summary->metrics.requests();
    EXPECT_EQ(totals.finished, 60);
    EXPECT_GT(totals.preemptions, 0);
    const bool snapshot = kind == Preemption::kSnapshot;
    EXPECT_EQ(totals.snapshots, snapshot ? totals.preemptions : 0);
    EXPECT_EQ(summary->executor.saves, totals.snapshots);
    EXPECT_EQ(totals.recomputed_tokens > 0, !snapshot);
    // Whole reservations need none.
    options.replay.scheduler.reservation = Reservation::kWhole;
    const auto whole = run_model(generate(load), options);
    ASSERT_OK(whole);
    EXPECT_EQ(whole->metrics.requests().preemptions, 0);
  }
}

TEST(ReplayRun, SnapshotsThatFindNoRoomAreRecomputed) {
  ModelReplayOptions options = small_options(8, 4096);
  options.replay.scheduler.reservation = Reservation::kPrompt;
  options.replay.scheduler.preemption = Preemption::kSnapshot;
  options.cache.snapshot_bytes = 0;
  const auto summary =
      run_model(generate({.requests = 60, .every_ms = 1, .most_input = 300, .most_output = 900}), options);
  ASSERT_OK(summary);
  EXPECT_GT(summary->metrics.requests().preemptions, 0);
  EXPECT_EQ(summary->metrics.requests().snapshots, 0);
  EXPECT_EQ(summary->metrics.requests().finished, 60);
}

TEST(ReplayRun, OverloadIsRefusedNobodyStarvesAndItRecovers) {
  // 300 requests at twice what is served, then 30 at leisure.
  Load load{.requests = 300, .every_ms = 0, .most_input = 600, .most_output = 60};
  ModelReplayOptions options = small_options();
  options.replay.scheduler.max_waiting = 10'000;
  const auto at_once = run_model(generate(load), options);
  ASSERT_OK(at_once);
  EXPECT_EQ(at_once->metrics.requests().finished, 300);
  const double served_every_ms = at_once->duration_ms() / 300;
  load.every_ms = served_every_ms / 2;
  std::vector<Request> requests;
  for (std::int64_t i = 0; i < 300; ++i) requests.push_back(generated(load, i));
  for (std::int64_t i = 0; i < 30; ++i) {
    requests.push_back(generated(load, 300 + i));
    requests.back().arrival_ms = served_every_ms * (400 + 4 * static_cast<double>(i));
  }
  const TempDirectory directory;
  options.replay.scheduler.max_waiting = 16;
  options.replay.requests_file = directory / "requests.jsonl";
  const auto summary = run_model(supply_of(requests), options);
  ASSERT_OK(summary);
  const RequestTotals& totals = summary->metrics.requests();
  EXPECT_EQ(totals.most_waiting, 16);
  EXPECT_GT(totals.rejected, 75);
  EXPECT_LT(totals.rejected, 225);
  EXPECT_EQ(totals.rejected_for[static_cast<std::size_t>(RejectReason::kQueueFull)], totals.rejected);
  ASSERT_TRUE(totals.least_tokens_per_s);
  EXPECT_GE(*totals.least_tokens_per_s, 1.0);
  EXPECT_LT(summary->metrics.itl_ms().greatest(), 1000.0);
  for (const std::string& line : file_lines(options.replay.requests_file)) {
    const Json json = Json::parse(line);
    if (json.at("metadata").at("session_num") < 305) continue;
    EXPECT_EQ(json.at("metadata").at("outcome"), "finished");
    EXPECT_LT(json.at("metrics").at("queue_time").at("value"), 10.0);
  }
}

// Two crowds with a pause between them: recovery is counted from the last rejection, not from the first crowd's.
TEST(ReplayRun, RecoveryFollowsTheLastRejection) {
  std::vector<Request> requests;
  for (std::int64_t i = 0; i < 40; ++i) requests.push_back(request(i, i < 20 ? 0 : 60'000, 600, 40));
  ModelReplayOptions options = small_options(2);
  options.replay.scheduler.max_waiting = 5;
  const auto summary = run_model(supply_of(requests), options);
  ASSERT_OK(summary);
  const RequestTotals& totals = summary->metrics.requests();
  EXPECT_GT(totals.rejected, 20);
  EXPECT_EQ(totals.first_rejected_ns, 0);
  EXPECT_EQ(totals.last_rejected_ns, 60'000'000'000);
  EXPECT_GT(totals.queue_empty_ns, totals.last_rejected_ns);
  EXPECT_LT(totals.queue_empty_ns, totals.last_end_ns);
  const Json overload = Json::parse(summary_json(*summary)).at("overload");
  EXPECT_EQ(overload.at("recovery_ms"), to_ms(totals.queue_empty_ns - totals.last_rejected_ns));
  // Where nobody is refused nothing is to be recovered from.
  options.replay.scheduler.max_waiting = 100;
  const auto calm = run_model(supply_of(requests), options);
  ASSERT_OK(calm);
  EXPECT_EQ(calm->metrics.requests().queue_empty_ns, -1);
  EXPECT_TRUE(Json::parse(summary_json(*calm)).at("overload").at("recovery_ms").is_null());
}

TEST(ReplayRun, RequestsThatCanNeverRunAreRefusedWithTheReason) {
  std::vector<Request> requests{request(0, 0, 4000, 97), request(1, 0, 4000, 96), request(2, 0, 0, 5),
                                request(3, 0, 20, 0)};
  const auto summary = run_model(supply_of(requests), small_options());
  ASSERT_OK(summary);
  const RequestTotals& totals = summary->metrics.requests();
  EXPECT_EQ(totals.finished, 2);  // one fills its context, one has no outputs
  EXPECT_EQ(totals.rejected_for[static_cast<std::size_t>(RejectReason::kTooLong)], 1);
  EXPECT_EQ(totals.rejected_for[static_cast<std::size_t>(RejectReason::kNoTokens)], 1);
  EXPECT_EQ(totals.output_tokens, 96);
  EXPECT_EQ(summary->metrics.ttft_ms().count(), 1);
}

TEST(ReplayRun, DraftsSaveStepsByAsMuchAsIsAccepted) {
  const auto steps = [](std::int32_t drafts, double acceptance) {
    ModelReplayOptions options = small_options(1);
    options.replay.scheduler.draft_tokens = drafts;
    options.replay.acceptance = acceptance;
    const auto summary = run_model(supply_of({request(0, 0, 100, 1001)}), options);
    EXPECT_OK(summary);
    EXPECT_EQ(summary->metrics.requests().output_tokens, 1001);
    return summary->metrics.steps();
  };
  EXPECT_EQ(steps(0, 0).steps, 1001);
  EXPECT_EQ(steps(3, 0).steps, 1001);
  EXPECT_EQ(steps(3, 1).steps, 1 + 250);
  // 1 + p + p^2 + p^3 tokens a step.
  EXPECT_NEAR(static_cast<double>(steps(3, 0.5).steps), 1000 / 1.875, 40);
  EXPECT_EQ(steps(3, 1).accepted_drafts, steps(3, 1).drafted_tokens);
}

TEST(ReplayRun, TurnsOfASessionFollowEachOtherAndALostOneEndsIt) {
  std::vector<Request> requests;
  for (std::int64_t turn = 0; turn < 4; ++turn) {
    requests.push_back(request(turn, 0, 100, 10));
    requests.back().session = 5;
    if (turn > 0) requests.back().arrival_ms.reset();
    requests.back().delay_ms = 500;
  }
  const TempDirectory directory;
  ModelReplayOptions options = small_options();
  options.replay.requests_file = directory / "requests.jsonl";
  ASSERT_OK(run_model(supply_of(requests), options));
  std::int64_t last_end_ns = -1;
  for (const std::string& line : file_lines(options.replay.requests_file)) {
    const Json metadata = Json::parse(line).at("metadata");
    const auto start = metadata.at("request_start_ns").get<std::int64_t>();
    if (last_end_ns >= 0) {
      EXPECT_EQ(start, last_end_ns + 500'000'000);
    }
    last_end_ns = metadata.at("request_end_ns").get<std::int64_t>();
  }
  EXPECT_GT(last_end_ns, 1'500'000'000);
  requests[1].input_tokens = 1'000'000;  // too long
  const auto summary = run_model(supply_of(requests), options);
  ASSERT_OK(summary);
  EXPECT_EQ(summary->metrics.requests().finished, 1);
  EXPECT_EQ(summary->metrics.requests().rejected, 1);
  EXPECT_EQ(summary->metrics.requests().aborted, 2);
}

TEST(ReplayRun, AClosedLoopKeepsItsConcurrency) {
  ModelReplayOptions options = small_options(8);
  options.replay.arrivals.mode = ArrivalMode::kClosedLoop;
  options.replay.arrivals.concurrency = 3;
  const auto summary = run_model(generate({.requests = 50}), options);
  ASSERT_OK(summary);
  EXPECT_EQ(summary->metrics.requests().finished, 50);
  EXPECT_EQ(summary->metrics.steps().most_sequences, 3);
  options.replay.arrivals.concurrency = 2000;
  EXPECT_TRUE(fails_with(run_model(generate({}), options), StatusCode::kInvalidArgument, {"concurrency", "2000"}));
}

TEST(ReplayRun, StoppingAbortsWhatIsLeftAndStillAddsUp) {
  ModelReplayOptions options = small_options();
  std::int64_t asked = 0;
  options.replay.stop = [&asked] { return ++asked > 40; };
  const auto summary = run_model(generate({.requests = 200, .every_ms = 1}), options);
  ASSERT_OK(summary);
  EXPECT_TRUE(summary->stopped);
  const RequestTotals& totals = summary->metrics.requests();
  EXPECT_GT(totals.aborted, 0);
  EXPECT_LT(totals.arrived, 201);
  EXPECT_EQ(totals.arrived, totals.finished + totals.rejected + totals.aborted);
  EXPECT_EQ(summary->metrics.latest().live_sequences, 0);
}

TEST(ReplayRun, AFailureOfTheSupplyLeavesNoFiles) {
  const TempDirectory directory;
  ModelReplayOptions options = small_options();
  options.replay.requests_file = directory / "requests.jsonl";
  options.replay.summary_file = directory / "summary.json";
  options.replay.timeline_file = directory / "timeline.json";
  std::int64_t served = 0;
  const RequestSupply supply = [&]() -> Result<std::optional<Request>> {
    if (served == 20) return Status{StatusCode::kBadInput, "log.jsonl:21: broken"};
    const auto number = static_cast<double>(served);
    return std::optional<Request>(request(served++, 10 * number, 100, 5));
  };
  EXPECT_TRUE(fails_with(run_model(supply, options), StatusCode::kBadInput, {"log.jsonl:21"}));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// Has room for everything, and says at the end what it is told to say.
class TellingExecutor : public ReplayExecutor {
 public:
  explicit TellingExecutor(VirtualClock& clock) : clock_(clock) {}
  Result<SequenceStart> create(std::span<const std::int32_t>, std::int64_t) override {
    return SequenceStart{.sequence = {.index = next_++, .generation = 1}};
  }
  Status prepare(std::span<const StepPart>) override { return {}; }
  Status run(std::span<const StepPart>) override {
    note_occupancy();
    clock_.advance(1000);
    return {};
  }
  Status commit(std::span<const std::int32_t>) override { return {}; }
  Status rollback() override { return {}; }
  Status release(SequenceId) override { return {}; }
  Result<SavedSequence> save(SequenceId) override { return SavedSequence(0); }
  Result<SequenceId> restore(SavedSequence, std::int64_t) override { return SequenceId{}; }
  Status drop(SavedSequence) override { return {}; }
  [[nodiscard]] const MemoryPlan& memory_plan() const override { return plan_; }
  void occupancy(CacheOccupancy& occupancy) const override { occupancy = told; }
  [[nodiscard]] PrefixStats prefix_stats() const override { return {}; }
  [[nodiscard]] ExecutorCounts counts() const override { return {}; }
  [[nodiscard]] Status check() const override { return checked; }

  CacheOccupancy told{.roles = {{.total_blocks = 10}}};
  Status checked;

 private:
  VirtualClock& clock_;
  MemoryPlan plan_;
  std::uint32_t next_ = 0;
};

TEST(ReplayRun, WhatIsLeftInTheCacheAtTheEndIsADefect) {
  const auto outcome = [](const std::function<void(TellingExecutor&)>& tell) {
    VirtualClock clock;
    TellingExecutor executor(clock);
    tell(executor);
    const TempDirectory directory;
    ReplayOptions options;
    options.scheduler = {.max_sequences = 2, .max_context_tokens = 100, .step_tokens = 50};
    options.requests_file = directory / "requests.jsonl";
    options.summary_file = directory / "summary.json";
    const auto summary = replay_requests(supply_of({request(0, 0, 10, 5)}), executor, clock, options);
    EXPECT_EQ(std::filesystem::exists(options.requests_file), summary.ok());
    EXPECT_EQ(std::filesystem::exists(options.summary_file), summary.ok());
    return summary.status();
  };
  EXPECT_OK(outcome([](TellingExecutor&) {}));
  EXPECT_TRUE(fails_with(outcome([](TellingExecutor& it) { it.told.roles[0].live_blocks = 3; }), StatusCode::kInternal,
                         {"3 blocks are live"}));
  EXPECT_TRUE(fails_with(outcome([](TellingExecutor& it) { it.told.roles[0].reserved_blocks = 2; }),
                         StatusCode::kInternal, {"2 reserved"}));
  EXPECT_TRUE(fails_with(outcome([](TellingExecutor& it) { it.told.live_sequences = 1; }), StatusCode::kInternal,
                         {"1 sequences live"}));
  EXPECT_TRUE(fails_with(outcome([](TellingExecutor& it) {
                           it.checked = {StatusCode::kInternal, "broken"};
                         }),
                         StatusCode::kInternal, {"broken"}));
}

TEST(ReplayRun, ExpertTimesAreAddedToEveryStepAndSaid) {
  ModelReplayOptions options = small_options(1);
  const auto plain = run_model(supply_of({request(0, 0, 100, 101)}), options);
  options.experts = {.us_per_step = 50, .us_per_token = 2};
  const auto with = run_model(supply_of({request(0, 0, 100, 101)}), options);
  ASSERT_OK(plain);
  ASSERT_OK(with);
  // 101 steps; 100 prompt and 100 decoded tokens.
  EXPECT_NEAR(with->duration_ms() - plain->duration_ms(), 101 * 0.05 + 200 * 0.002, 1e-3);
  EXPECT_EQ(Json::parse(summary_json(*with)).at("step_times").at("moe_us_per_step"), 50);
}

TEST(ReplayRun, OptionsOutOfRangeAreNamed) {
  ModelReplayOptions options = small_options();
  options.replay.acceptance = 1.5;
  EXPECT_TRUE(fails_with(run_model(generate({}), options), StatusCode::kInvalidArgument, {"acceptance", "1.5"}));
  options = small_options();
  options.replay.scheduler.step_tokens = 513;
  EXPECT_TRUE(fails_with(run_model(generate({}), options), StatusCode::kInvalidArgument, {"step tokens"}));
  options = small_options();
  options.replay.arrivals.speed = 0;
  EXPECT_TRUE(fails_with(run_model(generate({}), options), StatusCode::kInvalidArgument, {"speed"}));
  options = small_options();
  options.experts.us_per_token = -1;
  EXPECT_TRUE(fails_with(run_model(generate({}), options), StatusCode::kInvalidArgument, {"moe_us_per_token"}));
}

}  // namespace
}  // namespace dsv4rt::replay::test
