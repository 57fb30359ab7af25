// The trace of a run is read as Perfetto reads it: every event has what its phase needs, slices nest, steps follow
// each other, counters are numbers.
#include "replay/timeline_writer.h"

#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "replay_fixture.h"
#include "support/temp_directory.h"

namespace dsv4rt::replay::test {
namespace {

using Json = nlohmann::json;
using dsv4rt::test::TempDirectory;

Json trace_of(ModelReplayOptions options, const Load& load) {
  const TempDirectory directory;
  options.replay.timeline_file = directory / "timeline.json";
  EXPECT_OK(run_model(generate(load), options));
  return Json::parse(file_text(options.replay.timeline_file));
}

ModelReplayOptions busy_options() {
  ModelReplayOptions options = small_options(8, 4096);
  options.replay.scheduler.reservation = Reservation::kPrompt;
  options.replay.scheduler.max_waiting = 20;
  return options;
}
const Load kBusy{.requests = 80, .every_ms = 1, .most_input = 300, .most_output = 900};

TEST(TimelineWriter, RequestTracksNestAndAreComplete) {
  const Json trace = trace_of(busy_options(), kBusy);
  struct Open {
    std::string name;
    double since = 0;
  };
  std::map<std::int64_t, std::vector<Open>> open;
  std::map<std::string, int> closed;
  std::set<std::int64_t> seen;
  double latest = 0;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.value("cat", "") != "request") continue;
    const auto id = event.at("id").get<std::int64_t>();
    const double at = event.at("ts").get<double>();
    const std::string phase = event.at("ph");
    EXPECT_EQ(event.at("pid"), 1);
    seen.insert(id);
    auto& stack = open[id];
    if (phase == "b") {
      if (stack.empty()) latest = at;
      EXPECT_GE(at, latest);
      latest = at;
      stack.push_back({event.at("name"), at});
    } else if (phase == "e") {
      ASSERT_FALSE(stack.empty());
      EXPECT_EQ(stack.back().name, event.at("name").get<std::string>());
      EXPECT_GE(at, stack.back().since);
      EXPECT_GE(at, latest);
      latest = at;
      ++closed[stack.back().name];
      stack.pop_back();
    } else {
      EXPECT_EQ(phase, "n");
      EXPECT_EQ(event.at("name"), "rejected");
    }
  }
  EXPECT_EQ(seen.size(), 80U);
  for (const auto& [id, stack] : open) EXPECT_TRUE(stack.empty()) << id;
  EXPECT_EQ(closed["request"], closed["decode"]);
  EXPECT_EQ(closed["request"], closed["queued"]);
  EXPECT_GT(closed["preempted"], 0);
  EXPECT_LT(closed["request"], 80);  // some were rejected
}

TEST(TimelineWriter, StepsFollowEachOtherAndCountersAreNumbers) {
  const Json trace = trace_of(busy_options(), kBusy);
  double end = 0;
  std::set<std::string> counters;
  std::set<std::string> processes;
  std::set<std::string> kinds;
  for (const Json& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    if (phase == "X") {
      EXPECT_GE(event.at("ts").get<double>(), end - 1e-6);
      EXPECT_GT(event.at("dur").get<double>(), 0);
      end = event.at("ts").get<double>() + event.at("dur").get<double>();
      kinds.insert(event.at("name"));
    } else if (phase == "C") {
      counters.insert(event.at("name"));
      for (const auto& [name, value] : event.at("args").items()) EXPECT_TRUE(value.is_number()) << name;
    } else if (phase == "M") {
      processes.insert(event.at("args").at("name"));
    }
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"decode", "mixed", "prefill"}));
  EXPECT_EQ(processes, (std::set<std::string>{"requests", "steps", "cache"}));
  EXPECT_EQ(counters, (std::set<std::string>{"CSA_KV blocks", "INDEX_K blocks", "HCA_KV blocks", "slots",
                                             "boundary states", "queue"}));
}

TEST(TimelineWriter, BeyondTheLimitEventsAreCountedOnly) {
  ModelReplayOptions options = busy_options();
  options.replay.timeline_max_events = 50;
  const Json trace = trace_of(options, kBusy);
  EXPECT_LE(trace.at("traceEvents").size(), 53U);  // and the names of processes
  EXPECT_GT(trace.at("otherData").at("events_left_out"), 100);
}

}  // namespace
}  // namespace dsv4rt::replay::test
