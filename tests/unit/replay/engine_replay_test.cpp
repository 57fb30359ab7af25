// Replays in which an engine computes: schedules change no byte of an answer, and nothing is left behind.
#include "tools/engine_replay/engine_replay.h"

#include <algorithm>
#include <cstdio>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/try.h"
#include "engine_replay_fixture.h"
#include "support/capturing_backend.h"

namespace dsv4rt::replay::test {
namespace {

using Json = nlohmann::json;
using dsv4rt::test::BackendSwap;
using dsv4rt::test::TempDirectory;

struct Replayed {
  RunSummary summary;
  std::map<std::int64_t, std::string> digests;
  std::int64_t repeated_rows = 0;
};

// run_engine, with the executor at hand.
Result<Replayed> replay_answers(const EngineReplayOptions& given, RequestSupply supply) {
  const TempDirectory directory;
  EngineReplayOptions options = given;
  if (options.replay.requests_file.empty()) options.replay.requests_file = directory / "requests.jsonl";
  DSV4RT_RETURN_IF_ERROR(adopt_limits(options.replay.scheduler, options.engine.limits));
  options.engine.draft_budget_tokens = options.replay.scheduler.draft_tokens;
  options.executor.seed = options.replay.seed;
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(options.engine));
  VirtualClock clock;
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<EngineExecutor> executor,
                          EngineExecutor::create(*engine, options.executor, clock));
  DSV4RT_ASSIGN_OR_RETURN(RunSummary summary, replay_requests(std::move(supply), *executor, clock, options.replay));
  EXPECT_EQ(executor->saved_bytes(), 0);
  return Replayed{.summary = std::move(summary),
                  .digests = digests_of(options.replay.requests_file),
                  .repeated_rows = executor->repeated_rows()};
}

// The same requests one by one, by an engine that shares nothing among them.
EngineReplayOptions alone_options() {
  EngineReplayOptions options = crowded_options(Preemption::kRecompute, 0);
  options.engine = fast_engine(1, 0, 0);
  options.replay.scheduler.reservation = Reservation::kWhole;
  return options;
}

// Instrumented arithmetic takes minutes.
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr std::int64_t kAnswers = 1000;
#else
constexpr std::int64_t kAnswers = 300;
#endif

TEST(EngineReplay, SchedulingChangesNoByteOfAThousandAnswers) {
  const auto alone = replay_answers(alone_options(), answered_requests(0, kAnswers));
  ASSERT_OK(alone);
  ASSERT_EQ(static_cast<std::int64_t>(alone->digests.size()), kAnswers);
  EXPECT_EQ(alone->summary.metrics.requests().hit_tokens, 0);
  EXPECT_EQ(alone->summary.metrics.steps().most_sequences, 1);
  std::map<std::int64_t, std::string> digests;
  for (const Preemption preemption : {Preemption::kRecompute, Preemption::kSnapshot}) {
    const bool snapshot = preemption == Preemption::kSnapshot;
    EngineReplayOptions options = crowded_options(preemption);
    options.replay.check_every_steps = 100;
    // Room for a few at a time: the others are computed again.
    options.executor.snapshot_bytes = 400'000;
    const std::int64_t first = snapshot ? kAnswers / 2 : 0;
    const auto crowded = replay_answers(options, answered_requests(first, first + kAnswers / 2));
    ASSERT_OK(crowded);
    const RequestTotals& totals = crowded->summary.metrics.requests();
    const StepTotals& steps = crowded->summary.metrics.steps();
    std::printf(
        "[     INFO ] %s: %lld steps, %lld hit tokens, %lld preemptions, %lld of them by snapshot, %lld rows computed "
        "again, %lld drafts, %lld right\n",
        snapshot ? "snapshot" : "recompute", static_cast<long long>(steps.steps),
        static_cast<long long>(totals.hit_tokens), static_cast<long long>(totals.preemptions),
        static_cast<long long>(totals.snapshots), static_cast<long long>(crowded->repeated_rows),
        static_cast<long long>(steps.drafted_tokens), static_cast<long long>(steps.accepted_drafts));
    EXPECT_EQ(totals.finished, kAnswers / 2);
    EXPECT_GT(steps.most_sequences, 4);
    EXPECT_GT(totals.hit_tokens, 0);
    EXPECT_GT(steps.accepted_drafts, 0);
    EXPECT_LT(steps.accepted_drafts, steps.drafted_tokens);
    EXPECT_GT(totals.preemptions, 0);
    EXPECT_GT(totals.snapshots, snapshot ? 0 : -1);
    EXPECT_LT(totals.snapshots, totals.preemptions);
    EXPECT_GT(crowded->repeated_rows, 0);
    EXPECT_LE(crowded->summary.executor.peak_saved_bytes, options.executor.snapshot_bytes);
    digests.insert(crowded->digests.begin(), crowded->digests.end());
  }
  EXPECT_EQ(digests, alone->digests);
}

TEST(EngineReplay, EqualSeedsGiveEqualFilesWhereTimesAreNotMeasured) {
  const auto run = [](std::uint64_t seed) {
    const TempDirectory directory;
    EngineReplayOptions options = crowded_options(Preemption::kSnapshot);
    options.replay.seed = seed;
    options.replay.requests_file = directory / "requests.jsonl";
    options.executor.now_ns = even_clock();
    const auto summary = run_engine(answered_requests(0, 60), options);
    EXPECT_OK(summary);
    if (!summary.ok()) return std::pair<std::string, std::string>();
    EXPECT_EQ(summary->outputs.requests(), 60);
    return std::pair(file_text(options.replay.requests_file), summary->outputs.hex());
  };
  const auto first = run(3);
  EXPECT_EQ(run(3), first);
  const auto other = run(4);
  EXPECT_NE(other.first, first.first);
  EXPECT_NE(other.second, first.second);
}

// Time that is measured decides who runs with whom, not what comes out.
TEST(EngineReplay, MeasuredTimesChangeNoAnswer) {
  EngineReplayOptions options = crowded_options(Preemption::kRecompute);
  const auto measured = replay_answers(options, answered_requests(0, 60));
  options.executor.now_ns = even_clock();
  const auto even = replay_answers(options, answered_requests(0, 60));
  ASSERT_OK(measured);
  ASSERT_OK(even);
  EXPECT_EQ(measured->digests, even->digests);
}

TEST(EngineReplay, TheClockGoesOnByWhatStepsTakeAndByExperts) {
  EngineReplayOptions options = alone_options();
  options.executor.now_ns = even_clock();
  // Created, then 100 prompt tokens and 4 more: five steps, each prepared, run and committed. The release comes after
  // the last token.
  const auto plain = replay_answers(options, supply_of({request(0, 5000, 100, 5)}));
  ASSERT_OK(plain);
  EXPECT_NEAR(plain->summary.duration_ms(), 0.5 * (1 + 5 * 3 + 1), 1e-9);
  options.executor.experts = {.us_per_step = 50, .us_per_token = 2};
  const auto experts = replay_answers(options, supply_of({request(0, 5000, 100, 5)}));
  ASSERT_OK(experts);
  EXPECT_NEAR(experts->summary.duration_ms() - plain->summary.duration_ms(), 5 * 0.05 + 104 * 0.002, 1e-6);
  const Json summary = Json::parse(summary_json(experts->summary));
  EXPECT_EQ(summary.at("mode"), "real");
  EXPECT_EQ(summary.at("engine").at("moe_us_per_step"), 50);
  EXPECT_EQ(summary.at("engine").at("backend"), "cpu");
  EXPECT_GT(summary.at("memory").at("weight_bytes"), 0);
  EXPECT_EQ(summary.at("outputs").at("sha256"), plain->summary.outputs.hex());
}

TEST(EngineReplay, CapturedStepsGiveTheSameAnswersAndAreCounted) {
  const auto run = [](bool capture) {
    const TempDirectory directory;
    EngineReplayOptions options = crowded_options(Preemption::kRecompute);
    EXPECT_OK(adopt_limits(options.replay.scheduler, options.engine.limits));
    options.engine.draft_budget_tokens = options.replay.scheduler.draft_tokens;
    options.replay.requests_file = directory / "requests.jsonl";
    options.executor.seed = options.replay.seed;
    options.executor.draft_tokens = options.replay.scheduler.draft_tokens;
    options.executor.now_ns = even_clock();
    const auto engine = Engine::create(options.engine);
    EXPECT_OK(engine);
    std::optional<BackendSwap> backend;
    if (capture) backend.emplace(**engine);
    VirtualClock clock;
    const auto executor = EngineExecutor::create(**engine, options.executor, clock);
    EXPECT_OK(executor);
    const auto summary = replay_requests(answered_requests(0, 60), **executor, clock, options.replay);
    EXPECT_OK(summary);
    const ExecutorCounts counts = (*executor)->counts();
    EXPECT_EQ(*counts.captured_steps > 0, capture);
    // What was made to warm up is not counted; decode steps are captured and no others.
    EXPECT_EQ(*counts.captured_steps, capture ? summary->metrics.steps().decode_only : 0);
    // Every shape had its graph before the first request came.
    EXPECT_EQ(*counts.graph_captures, 0);
    EXPECT_EQ((*engine)->graph_stats().captures > 5, capture);
    EXPECT_EQ(Json::parse(summary_json(*summary)).at("steps").at("captured"), *counts.captured_steps);
    return digests_of(options.replay.requests_file);
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(EngineReplay, TheReportSaysThePrecisionOfLinears) {
  EngineReplayOptions options = alone_options();
  ASSERT_OK(adopt_limits(options.replay.scheduler, options.engine.limits));
  for (const LinearPrecision precision : kLinearPrecisions) {
    const auto engine = Engine::create(options.engine);
    ASSERT_OK(engine);
    BackendSwap backend(**engine);
    backend->precision = precision;
    VirtualClock clock;
    const auto executor = EngineExecutor::create(**engine, options.executor, clock);
    ASSERT_OK(executor);
    const auto summary = replay_requests(supply_of({request(0, 5000, 100, 5)}), **executor, clock, options.replay);
    ASSERT_OK(summary);
    const Json told = Json::parse(summary_json(*summary)).at("engine");
    EXPECT_EQ(told.value("linear_precision", "nothing"), linear_precision_name(precision));
    EXPECT_EQ(told.at("deterministic"), precision != LinearPrecision::kNvfp4);
  }
}

TEST(EngineReplay, WithoutDigestsNothingIsKeptAndNothingTold) {
  EngineReplayOptions options = crowded_options(Preemption::kRecompute);
  options.executor.digests = false;
  const TempDirectory directory;
  options.replay.requests_file = directory / "requests.jsonl";
  const auto summary = run_engine(answered_requests(0, 20), options);
  ASSERT_OK(summary);
  EXPECT_EQ(summary->outputs.requests(), 0);
  EXPECT_EQ(summary->engine->output_row_bytes, 0);
  EXPECT_EQ(file_text(options.replay.requests_file).find("sha256"), std::string::npos);
}

// ---- Failures -----------------------------------------------------------------------------------

TEST(EngineReplay, AStepThatFailsEndsTheReplayAndReleasesEverything) {
  EngineReplayOptions options = crowded_options(Preemption::kSnapshot);
  ASSERT_OK(adopt_limits(options.replay.scheduler, options.engine.limits));
  options.engine.draft_budget_tokens = options.replay.scheduler.draft_tokens;
  options.executor.now_ns = even_clock();
  const auto engine = Engine::create(options.engine);
  ASSERT_OK(engine);
  BackendSwap backend(**engine);
  VirtualClock clock;
  const auto executor = EngineExecutor::create(**engine, options.executor, clock);
  ASSERT_OK(executor);
  const TempDirectory directory;
  options.replay.requests_file = directory / "requests.jsonl";
  // Clients that wait for their answers: every replay is the same, whatever the clock says by then.
  options.replay.arrivals.mode = ArrivalMode::kClosedLoop;
  options.replay.arrivals.concurrency = 12;
  int operations = 0;
  backend->capturing_ops().fail = [&operations](std::string_view name) -> Status {
    operations += name == "linear" ? 1 : 0;
    return {};
  };
  ASSERT_OK(replay_requests(answered_requests(0, 60), **executor, clock, options.replay));
  ASSERT_GT(operations, 100);
  for (const int first : {3, operations / 4, operations / 2, operations * 3 / 4}) {
    int left = first;
    backend->capturing_ops().fail = [&left](std::string_view name) -> Status {
      const bool fails = name == "linear" && --left == 0;
      return fails ? Status(StatusCode::kResourceExhausted, "refused by the test") : Status{};
    };
    std::filesystem::remove(options.replay.requests_file);
    ASSERT_OK((*engine)->clear_prefixes());
    const auto summary = replay_requests(answered_requests(0, 60), **executor, clock, options.replay);
    EXPECT_TRUE(fails_with(summary.status(), StatusCode::kResourceExhausted, {"refused by the test"}));
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
    CacheOccupancy occupancy;
    (*executor)->occupancy(occupancy);
    EXPECT_EQ(occupancy.live_sequences, 0);
    for (const RoleOccupancy& role : occupancy.roles) {
      EXPECT_EQ(role.live_blocks, 0);
      EXPECT_EQ(role.reserved_blocks, 0);
    }
    EXPECT_EQ((*executor)->saved_bytes(), 0);
    EXPECT_OK((*executor)->check());
  }
  backend->capturing_ops().fail = nullptr;
  EXPECT_OK(replay_requests(answered_requests(0, 60), **executor, clock, options.replay));
}

TEST(EngineReplay, AFaultOfTheDeviceIsToldAsSuch) {
  EngineReplayOptions options = alone_options();
  ASSERT_OK(adopt_limits(options.replay.scheduler, options.engine.limits));
  const auto engine = Engine::create(options.engine);
  ASSERT_OK(engine);
  BackendSwap backend(**engine);
  VirtualClock clock;
  const auto executor = EngineExecutor::create(**engine, options.executor, clock);
  ASSERT_OK(executor);
  int left = 50;
  backend->capturing_ops().fail = [&left](std::string_view) -> Status {
    return --left == 0 ? Status(StatusCode::kFaulted, "the device is gone") : Status{};
  };
  const auto summary = replay_requests(answered_requests(0, 60), **executor, clock, options.replay);
  EXPECT_TRUE(fails_with(summary.status(), StatusCode::kFaulted, {"the device is gone"}));
}

TEST(EngineReplay, AnAnswerThatChangesIsADefect) {
  const auto engine = Engine::create(fast_engine(2, 0, 0));
  ASSERT_OK(engine);
  VirtualClock clock;
  const auto executor = EngineExecutor::create(**engine, {}, clock);
  ASSERT_OK(executor);
  std::vector<std::int32_t> ids{5, 6, 7, 8};
  // Runs ids as request 1 with a prompt of two tokens; what the commit says.
  const auto run = [&] {
    const auto start = (*executor)->create(ids, 0);
    EXPECT_OK(start);
    const StepPart part{.entry = {.sequence = start->sequence, .tokens = 4, .token_ids = ids.data()},
                        .context_tokens = 0,
                        .prefill = true,
                        .request = 1,
                        .prompt_tokens = 2};
    EXPECT_OK((*executor)->prepare({&part, 1}));
    EXPECT_OK((*executor)->run({&part, 1}));
    const std::int32_t all = 4;
    const Status status = (*executor)->commit({&all, 1});
    EXPECT_OK((*executor)->release(start->sequence));
    return status;
  };
  EXPECT_OK(run());
  EXPECT_EQ((*executor)->repeated_rows(), 0);
  EXPECT_OK(run());
  EXPECT_EQ((*executor)->repeated_rows(), 3);  // positions 1 to 3
  ids[3] = 9;
  EXPECT_TRUE(fails_with(run(), StatusCode::kInternal, {"request 1", "position 3"}));
  ids[3] = 8;
  EXPECT_OK(run());
  EXPECT_EQ((*executor)->take_output_digest(1).size(), 64U);
  EXPECT_EQ((*executor)->take_output_digest(1), "");
}

TEST(EngineReplay, OptionsOutOfRangeAreNamed) {
  EngineReplayOptions options = crowded_options(Preemption::kRecompute);
  options.executor.snapshot_bytes = -1;
  EXPECT_TRUE(
      fails_with(run_engine(answered_requests(0, 1), options), StatusCode::kInvalidArgument, {"snapshot_bytes"}));
  options = crowded_options(Preemption::kRecompute);
  options.executor.experts.us_per_step = -1;
  EXPECT_TRUE(
      fails_with(run_engine(answered_requests(0, 1), options), StatusCode::kInvalidArgument, {"moe_us_per_step"}));
  options = crowded_options(Preemption::kRecompute);
  options.replay.scheduler.step_tokens = 513;
  EXPECT_TRUE(fails_with(run_engine(answered_requests(0, 1), options), StatusCode::kInvalidArgument, {"step tokens"}));
  options = crowded_options(Preemption::kRecompute);
  options.engine.checkpoint = "/none";
  EXPECT_EQ(run_engine(answered_requests(0, 1), options).status().code(), StatusCode::kNotFound);
}

TEST(EngineReplay, APoolOfBytesHoldsTheMostTokensThatFit) {
  EngineOptions options = fast_engine(4, 0, 8);
  options.layer_count = 2;
  constexpr std::int64_t kBytes = 8 << 20;
  ASSERT_OK(fit_pool(options, kBytes));
  const auto fits = Engine::create(options);
  ASSERT_OK(fits);
  EXPECT_LE((*fits)->memory().cache.total_bytes, kBytes);
  EXPECT_GT((*fits)->memory().cache.total_bytes, kBytes - (1 << 16));
  // Whole blocks: a token more takes the next one.
  options.limits.pool_tokens += 64;
  const auto more = Engine::create(options);
  ASSERT_OK(more);
  EXPECT_GT((*more)->memory().cache.total_bytes, kBytes);
  EXPECT_EQ(fit_pool(options, 1000).code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace dsv4rt::replay::test
