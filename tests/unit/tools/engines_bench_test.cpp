#include "tools/lib/engines_bench.h"

#include <algorithm>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "tools/lib/device_engines.h"
#include "tools/lib/engine_editor.h"

namespace dsv4rt::test {
namespace {

using DeviceList = std::vector<std::int32_t>;
constexpr StepShape kTwoSequences{.batch = 2, .context_tokens = 40};
constexpr StepBenchOptions kThreeSteps{.steps = 3, .seed = 3, .fill = true};

EngineOptions two_sequence_options() {
  EngineOptions options = GoldenCase::open("tiny-bf16").options();
  options.draft_budget_tokens = 1;
  options.limits = engines_bench_limits({&kTwoSequences, 1});
  return options;
}

std::vector<std::unique_ptr<Engine>> make_engines(const DeviceList& devices) {
  auto made = create_device_engines(two_sequence_options(), devices);
  EXPECT_OK(made);
  return std::move(made).value();
}

TEST(DeviceEngines, TheCpuHasAsManyAsItIsNamedOnOneCopyOfTheWeights) {
  const auto engines = make_engines({0, 0, 0});
  ASSERT_EQ(engines.size(), 3U);
  EXPECT_GT(engines[0]->memory().weight_bytes, 0);
  for (std::size_t i = 1; i < engines.size(); ++i) EXPECT_EQ(engines[i]->memory().weight_bytes, 0);
}

TEST(DeviceEngines, ListsThatNameNoEnginesAreRefused) {
  const auto refused = [](const std::string& backend, const DeviceList& devices, const std::string& text) {
    EngineOptions with = two_sequence_options();
    with.backend = backend;
    return fails_with(create_device_engines(with, devices), StatusCode::kInvalidArgument, {"devices", text});
  };
  EXPECT_TRUE(refused("cpu", {}, "0 are named"));
  EXPECT_TRUE(refused("cpu", DeviceList(65, 0), "65 are named"));
  EXPECT_TRUE(refused("cpu", {0, 1}, "1; accepted with backend cpu: 0"));
  EXPECT_TRUE(refused("cuda", {0, -1}, "-1"));
  EXPECT_TRUE(refused("cuda", {0, 1, 0}, "0 is named more than once"));
}

// As many as one engine takes, before they are divided.
TEST(DeviceEngines, ThreadsThatAnEngineDoesNotTakeAreRefused) {
  for (const std::int32_t threads : {-3, -1, 1025, 2048}) {
    for (const DeviceList& devices : {DeviceList{0}, DeviceList{0, 0}}) {
      EngineOptions options = two_sequence_options();
      options.threads = threads;
      EXPECT_TRUE(fails_with(create_device_engines(options, devices), StatusCode::kInvalidArgument,
                             {"threads: " + std::to_string(threads), "1024"}));
    }
  }
}

TEST(DeviceEngines, ThreadsAreThoseOfTheProcessorsThatTheProcessMayUse) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  const auto processors = CPU_COUNT(&all);
  EXPECT_EQ(threads_of_each(0, 1), processors);
  EXPECT_EQ(threads_of_each(0, 2), std::max(1, processors / 2));
  EXPECT_EQ(threads_of_each(7, 2), 3);
  EXPECT_EQ(threads_of_each(1, 3), 1);
  int first = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(first), &all)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(first), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(threads_of_each(0, 1), 1);
  EXPECT_EQ(threads_of_each(0, 2), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

TEST(EnginesBench, TimesEveryEngineAloneAndTogether) {
  const auto engines = make_engines({0, 0});
  const auto times = bench_engines(engines, kTwoSequences, kThreeSteps);
  ASSERT_OK(times);
  ASSERT_EQ(times->size(), 2U);
  for (const EngineTimes& time : *times) {
    EXPECT_GT(time.alone_ms, 0);
    EXPECT_GT(time.together_ms, 0);
  }
  // Nothing is left behind: the same engines are measured again.
  ASSERT_OK(bench_engines(engines, kTwoSequences, kThreeSteps));
}

// In pools that hold no more than these contexts.
TEST(EnginesBench, SequencesOfSeveralLengthsAreTimedToo) {
  constexpr StepShape kSeveral{.batch = 2, .context_tokens = 200, .shortest_tokens = 10};
  EngineOptions options = two_sequence_options();
  options.limits = engines_bench_limits({&kSeveral, 1});
  EXPECT_EQ(options.limits.pool_tokens, cached_tokens(kSeveral) + 2);
  EXPECT_LT(options.limits.pool_tokens, 2 * 200);
  std::vector<std::unique_ptr<Engine>> engines;
  engines.push_back(make_engine(options));
  ASSERT_OK(bench_engines(engines, kSeveral, kThreeSteps));
}

TEST(EnginesBench, OtherOutputsAreAMismatch) {
  std::vector<std::unique_ptr<Engine>> engines = make_engines({0, 0});
  // Other weights.
  EngineOptions other = two_sequence_options();
  other.first_layer = 0;
  other.layer_count = 1;
  engines[1] = make_engine(other);
  EXPECT_TRUE(fails_with(bench_engines(engines, kTwoSequences, kThreeSteps), StatusCode::kMismatch, {"engine 1"}));
}

TEST(EnginesBench, WhatOneEngineRefusesEndsTheBench) {
  std::vector<std::unique_ptr<Engine>> engines = make_engines({0, 0});
  EngineOptions small = two_sequence_options();
  small.limits.max_sequences = 1;
  engines[1] = make_engine(small);
  EXPECT_EQ(bench_engines(engines, kTwoSequences, kThreeSteps).status().code(), StatusCode::kResourceExhausted);
}

TEST(EnginesBench, NumbersThatAreNotPositiveAreRefused) {
  const auto engines = make_engines({0});
  EXPECT_TRUE(fails_with(bench_engines({}, kTwoSequences, kThreeSteps), StatusCode::kInvalidArgument, {"engines: 0"}));
  EXPECT_TRUE(
      fails_with(bench_engines(engines, {.batch = 0}, kThreeSteps), StatusCode::kInvalidArgument, {"batch: 0"}));
  EXPECT_TRUE(
      fails_with(bench_engines(engines, kTwoSequences, {.steps = 0}), StatusCode::kInvalidArgument, {"steps: 0"}));
}

// What throws on one thread ends the others' work too, wherever it comes: while engines are timed together, alone, or
// warm up.
TEST(EnginesBench, WhatIsThrownOnOneThreadEndsTheBench) {
  for (const int failing : {18, 12, 3}) {
    const auto engines = make_engines({0, 0});
    int asked = 0;
    WorkWatch watch([&asked, failing]() -> bool {
      if (++asked == failing) throw std::runtime_error("the watch is broken");
      return false;
    });
    EXPECT_TRUE(fails_with(bench_engines(engines, kTwoSequences, kThreeSteps, &watch), StatusCode::kInternal,
                           {"the watch is broken"}))
        << failing;
    EXPECT_GE(asked, failing);
  }
}

TEST(EnginesBench, AWatchEndsAllOfThem) {
  const auto engines = make_engines({0, 0});
  int asked = 0;
  WorkWatch watch([&asked] { return ++asked > 14; });
  EXPECT_EQ(bench_engines(engines, kTwoSequences, {.steps = 100000}, &watch).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(watch.stopped());
}

}  // namespace
}  // namespace dsv4rt::test
