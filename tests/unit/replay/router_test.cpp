#include "replay/router.h"

#include <vector>

#include <gtest/gtest.h>

#include "replay/replay_run.h"
#include "replay_fixture.h"

namespace dsv4rt::replay::test {
namespace {

std::size_t choose(Router& router, std::vector<MachineLoad> machines) {
  return router.choose(machines);
}

TEST(Router, RoundRobinIsThatWhateverTheLoad) {
  Router router(Route::kRoundRobin, 8);
  for (const std::size_t expected : {0U, 1U, 2U, 0U, 1U}) {
    EXPECT_EQ(choose(router, {{.running = 9, .hit_tokens = 5}, {.waiting = 9}, {}}), expected);
  }
}

TEST(Router, AWaitingRequestWeighsFourRunningOnes) {
  Router router(Route::kLeastLoaded, 8);
  EXPECT_EQ(choose(router, {{.running = 5}, {.running = 0, .waiting = 1}, {.running = 6}}), 1U);
  EXPECT_EQ(choose(router, {{.running = 3}, {.running = 0, .waiting = 1}}), 0U);
  EXPECT_EQ(choose(router, {{.running = 4}, {.waiting = 1}}), 0U) << "the first of equals";
}

TEST(Router, PrefixGoesWhereMostIsCachedUnlessThatIsFarAhead) {
  Router router(Route::kPrefix, 8);
  EXPECT_EQ(choose(router, {{.running = 0}, {.running = 5, .hit_tokens = 128}, {.running = 6, .hit_tokens = 64}}), 1U);
  EXPECT_EQ(choose(router, {{.running = 5, .hit_tokens = 128}, {.running = 4, .hit_tokens = 128}}), 1U);
  EXPECT_EQ(choose(router, {{.running = 2}, {.running = 1}}), 1U) << "nothing cached anywhere";
  EXPECT_EQ(choose(router, {{.running = 8, .hit_tokens = 128}, {}}), 0U);
  EXPECT_EQ(choose(router, {{.running = 9, .hit_tokens = 128}, {}}), 1U) << "ahead by more than it runs at a time";
}

TEST(Router, NamesAreThoseOfTheCommandLine) {
  for (const Route route : {Route::kRoundRobin, Route::kPrefix, Route::kLeastLoaded}) {
    const auto found = route_from_name(route_name(route));
    ASSERT_OK(found);
    EXPECT_EQ(*found, route);
  }
  EXPECT_TRUE(fails_with(route_from_name("best"), StatusCode::kInvalidArgument, {"best", "least-loaded"}));
}

// ---- Runs of several machines

Result<RunSummary> run_on(std::int32_t machines, Route route, const Load& load,
                          ModelReplayOptions options = small_options()) {
  options.machines = machines;
  options.replay.route = route;
  return run_model(generate(load), options);
}

TEST(ReplayOfSeveralMachines, EveryRequestEndsOnOneOfThem) {
  for (const Route route : {Route::kRoundRobin, Route::kPrefix, Route::kLeastLoaded}) {
    const auto summary = run_on(3, route, {.requests = 200, .every_ms = 3, .shared_prompts = 5});
    ASSERT_OK(summary);
    const RequestTotals& totals = summary->metrics.requests();
    EXPECT_EQ(totals.finished, 200) << route_name(route);
    ASSERT_EQ(summary->machines.size(), 3U);
    MachineTotals sum;
    for (const MachineTotals& machine : summary->machines) {
      EXPECT_GT(machine.requests, 0) << route_name(route);
      sum.requests += machine.requests;
      sum.admitted_input_tokens += machine.admitted_input_tokens;
      sum.hit_tokens += machine.hit_tokens;
      sum.steps += machine.steps;
      sum.busy_ns += machine.busy_ns;
    }
    EXPECT_EQ(sum.requests, 200);
    EXPECT_EQ(sum.admitted_input_tokens, totals.admitted_input_tokens);
    EXPECT_EQ(sum.hit_tokens, totals.hit_tokens);
    EXPECT_EQ(sum.steps, summary->metrics.steps().steps);
    EXPECT_EQ(sum.busy_ns, summary->metrics.steps().busy_ns);
    EXPECT_EQ(summary->metrics.latest().max_sequences, 3 * small_options().cache.limits.max_sequences);
  }
}

TEST(ReplayOfSeveralMachines, MachinesWorkAtTheSameTime) {
  const Load load{.requests = 120, .every_ms = 1, .most_input = 1000};
  const auto one = run_on(1, Route::kLeastLoaded, load);
  const auto four = run_on(4, Route::kLeastLoaded, load);
  ASSERT_OK(one);
  ASSERT_OK(four);
  EXPECT_TRUE(one->machines.empty()) << "one machine is not told apart";
  EXPECT_LT(four->duration_ms(), 0.45 * one->duration_ms());
  EXPECT_GT(static_cast<double>(four->metrics.steps().busy_ns), 2.0e6 * four->duration_ms());
}

TEST(ReplayOfSeveralMachines, AMachineAloneServesAsIfThereWereNoOther) {
  // One request at a time, each long after the other: all of a round of three go to the same kind of idle machine.
  const Load load{.requests = 12, .every_ms = 100'000, .shared_prompts = 0};
  const auto one = run_on(1, Route::kRoundRobin, load);
  const auto three = run_on(3, Route::kRoundRobin, load);
  ASSERT_OK(one);
  ASSERT_OK(three);
  EXPECT_EQ(one->duration_ms(), three->duration_ms());
  EXPECT_EQ(one->metrics.ttft_ms().mean(), three->metrics.ttft_ms().mean());
  for (const MachineTotals& machine : three->machines) EXPECT_EQ(machine.requests, 4);
}

TEST(ReplayOfSeveralMachines, PrefixRoutingHitsMoreThanTakingTurns) {
  const Load load{.requests = 200, .every_ms = 30, .shared_prompts = 6};
  const auto turns = run_on(4, Route::kRoundRobin, load);
  const auto prefix = run_on(4, Route::kPrefix, load);
  ASSERT_OK(turns);
  ASSERT_OK(prefix);
  EXPECT_GT(prefix->metrics.requests().hit_tokens, turns->metrics.requests().hit_tokens);
}

TEST(ReplayOfSeveralMachines, EqualRunsGiveEqualTextAndEveryMachineIsInIt) {
  const Load load{.requests = 80, .every_ms = 2, .shared_prompts = 3};
  auto first = run_on(2, Route::kPrefix, load);
  auto second = run_on(2, Route::kPrefix, load);
  ASSERT_OK(first);
  ASSERT_OK(second);
  first->wall_ms = second->wall_ms = 0;
  EXPECT_EQ(summary_json(*first), summary_json(*second));
  EXPECT_NE(summary_json(*first).find("\"route\": \"prefix\""), std::string::npos);
}

TEST(ReplayOfSeveralMachines, StoppedRunsAbortOnAllOfThem) {
  ModelReplayOptions options = small_options();
  int asked = 0;
  options.replay.stop = [&asked] { return ++asked > 40; };
  const auto summary = run_on(3, Route::kLeastLoaded, {.requests = 200, .every_ms = 1}, options);
  ASSERT_OK(summary);
  EXPECT_TRUE(summary->stopped);
  const RequestTotals& totals = summary->metrics.requests();
  EXPECT_GT(totals.aborted, 3);
  EXPECT_EQ(totals.arrived, totals.finished + totals.aborted + totals.rejected);
}

TEST(ReplayOfSeveralMachines, TheirNumberIsBounded) {
  for (const std::int32_t machines : {0, -1, kMaxMachines + 1}) {
    EXPECT_TRUE(fails_with(run_on(machines, Route::kPrefix, {}), StatusCode::kInvalidArgument,
                           {"machines", std::to_string(machines)}));
  }
}

}  // namespace
}  // namespace dsv4rt::replay::test
