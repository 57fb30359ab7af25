#include "support/prometheus_reader.h"

#include <gtest/gtest.h>

#include "replay_fixture.h"

namespace dsv4rt::replay::test {
namespace {

TEST(ReplayMetrics, AreReadStrictly) {
  ModelReplayOptions options = small_options();
  options.replay.service_levels = *ServiceLevels::parse("ttft:100");
  const auto summary = run_model(generate({.requests = 30, .shared_prompts = 2}), options);
  ASSERT_OK(summary);
  const std::string text = prometheus_text(*summary);
  const auto read = dsv4rt::test::read_prometheus(text);
  EXPECT_GT(read.types.size(), 20U);
  EXPECT_EQ(read.samples.at("dsv4rt_replay_requests_ended_total{outcome=\"finished\"}"), 30);
  EXPECT_EQ(read.samples.at("dsv4rt_replay_time_to_first_token_seconds_count"), 30);
  EXPECT_TRUE(read.samples.contains("dsv4rt_replay_cache_blocks{role=\"HCA_KV\"}"));
  // Quotes and backslashes of a label are escaped.
  EXPECT_NE(text.find("device=\"a \\\"test\\\" machine\\\\\""), std::string::npos);
}

}  // namespace
}  // namespace dsv4rt::replay::test
