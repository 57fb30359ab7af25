// Replays on several engines of one process: answers are those of one, and engines step at the same time.
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine_replay_fixture.h"
#include "tools/engine_replay/engine_replay.h"

namespace dsv4rt::replay::test {
namespace {

using dsv4rt::test::TempDirectory;

constexpr std::int64_t kDeviceRequests = 200;

struct ReplayedOnDevices {
  RunSummary summary;
  std::map<std::int64_t, std::string> digests;
};

Result<ReplayedOnDevices> replay_on(std::vector<std::int32_t> devices, Route route, RequestSupply supply,
                                    EngineReplayOptions options = crowded_options(Preemption::kRecompute)) {
  const TempDirectory directory;
  options.devices = std::move(devices);
  options.replay.route = route;
  options.replay.requests_file = directory / "requests.jsonl";
  auto summary = run_engine(std::move(supply), options);
  if (!summary) return summary.status();
  return ReplayedOnDevices{.summary = std::move(*summary), .digests = digests_of(options.replay.requests_file)};
}

TEST(ReplayOnDevices, EveryRouteGivesTheAnswersOfOneEngine) {
  const auto one = replay_on({}, Route::kPrefix, answered_requests(0, kDeviceRequests));
  ASSERT_OK(one);
  ASSERT_EQ(static_cast<std::int64_t>(one->digests.size()), kDeviceRequests);
  EXPECT_TRUE(one->summary.machines.empty());
  for (const Route route : {Route::kRoundRobin, Route::kPrefix, Route::kLeastLoaded}) {
    const auto three = replay_on({0, 0, 0}, route, answered_requests(0, kDeviceRequests));
    ASSERT_OK(three);
    EXPECT_TRUE(three->digests == one->digests) << route_name(route);
    ASSERT_EQ(three->summary.machines.size(), 3U);
    std::int64_t requests = 0;
    for (const MachineTotals& machine : three->summary.machines) {
      EXPECT_GT(machine.requests, 0) << route_name(route);
      requests += machine.requests;
    }
    EXPECT_EQ(requests, kDeviceRequests);
    EXPECT_EQ(three->summary.route, route);
  }
}

// Pairs of requests at the same time, long apart; each pair comes in the other order than the one before. Whoever goes
// by load alone sends the second of a pair elsewhere than its prompt is.
TEST(ReplayOnDevices, PrefixRoutingGoesWhereThePromptIs) {
  constexpr std::int64_t kPairs = 6;
  std::vector<Request> requests;
  for (std::int64_t i = 0; i < 2 * kPairs; ++i) {
    Request made = request(i, 10'000.0 * static_cast<double>(i / 2), 140, 2);
    made.block_tokens = 128;
    made.block_ids.push_back(static_cast<std::uint64_t>((i + i / 2) % 2));
    requests.push_back(std::move(made));
  }
  const auto hits = [&](Route route) {
    const auto replayed = replay_on({0, 0}, route, supply_of(requests));
    EXPECT_OK(replayed);
    return replayed.ok() ? replayed->summary.metrics.requests().hit_tokens : 0;
  };
  // Each prompt is computed once, or once by each engine.
  EXPECT_EQ(hits(Route::kPrefix), (2 * kPairs - 2) * 128);
  EXPECT_EQ(hits(Route::kLeastLoaded), (2 * kPairs - 4) * 128);
}

// The first look at the clock of each engine waits for the other engine's: nobody comes if they take turns.
class Meeting {
 public:
  std::int64_t now_ns() {
    std::unique_lock lock(mutex_);
    threads_.insert(std::this_thread::get_id());
    met_.notify_all();
    // The thread that makes the engines looks first, where these warm up.
    if (!met_.wait_for(lock, std::chrono::seconds(20), [this] { return threads_.size() >= 2; })) alone_ = true;
    return now_ns_ += 1000;
  }
  [[nodiscard]] bool took_place() const { return threads_.size() == 2 && !alone_; }
  [[nodiscard]] bool has(std::thread::id thread) const { return threads_.count(thread) > 0; }

 private:
  std::mutex mutex_;
  std::condition_variable met_;
  std::set<std::thread::id> threads_;
  bool alone_ = false;
  std::int64_t now_ns_ = 0;
};

TEST(ReplayOnDevices, EnginesStepAtTheSameTimeOnThreadsOfTheirOwn) {
  EngineReplayOptions options = crowded_options(Preemption::kRecompute);
  Meeting meeting;
  options.executor.now_ns = [&meeting] { return meeting.now_ns(); };
  ASSERT_OK(replay_on({0, 0}, Route::kRoundRobin, supply_of({request(0, 0, 20, 3), request(1, 0, 20, 3)}), options));
  EXPECT_TRUE(meeting.took_place());
  EXPECT_FALSE(meeting.has(std::this_thread::get_id()));
}

// Requests of sessions may wait for others, so that nothing runs at the same time: what happens is the same.
TEST(ReplayOnDevices, StepsAtTheSameTimeChangeNothing) {
  const auto run = [](bool sessions) {
    EngineReplayOptions options = crowded_options(Preemption::kRecompute);
    options.executor.now_ns = even_clock();
    options.replay.arrivals.speed = 20;
    std::vector<Request> requests;
    for (std::int64_t i = 0; i < kDeviceRequests; ++i) {
      requests.push_back(answered_request(i));
      if (sessions) requests.back().session = i;
    }
    return replay_on({0, 0, 0}, Route::kLeastLoaded, supply_of(std::move(requests)), options);
  };
  auto together = run(false);
  auto in_turn = run(true);
  ASSERT_OK(together);
  ASSERT_OK(in_turn);
  EXPECT_TRUE(together->digests == in_turn->digests);
  EXPECT_GT(together->summary.metrics.requests().preemptions, 0);
  together->summary.wall_ms = in_turn->summary.wall_ms = 0;
  // The slowest requests are named with their sessions.
  const auto without_sessions = [](const RunSummary& summary) {
    return std::regex_replace(summary_json(summary), std::regex("\\s*\"conversation_id\": \\d+,"), "");
  };
  EXPECT_TRUE(without_sessions(together->summary) == without_sessions(in_turn->summary));
}

TEST(ReplayOnDevices, AStoppedReplayCountsStepsThatRanAhead) {
  EngineReplayOptions options = crowded_options(Preemption::kRecompute);
  int asked = 0;
  options.replay.stop = [&asked] { return ++asked > 30; };
  const auto stopped = replay_on({0, 0, 0}, Route::kRoundRobin, answered_requests(0, kDeviceRequests), options);
  ASSERT_OK(stopped);
  EXPECT_TRUE(stopped->summary.stopped);
  const RequestTotals& totals = stopped->summary.metrics.requests();
  EXPECT_GT(totals.aborted, 0);
  EXPECT_EQ(totals.arrived, totals.finished + totals.aborted + totals.rejected);
  std::int64_t steps = 0;
  for (const MachineTotals& machine : stopped->summary.machines) steps += machine.steps;
  EXPECT_EQ(steps, stopped->summary.metrics.steps().steps);
}

TEST(ReplayOnDevices, DevicesThatAreNotThereAreRefused) {
  EXPECT_TRUE(fails_with(replay_on({0, 3}, Route::kPrefix, answered_requests(0, 1)), StatusCode::kInvalidArgument,
                         {"devices", "3"}));
}

}  // namespace
}  // namespace dsv4rt::replay::test
