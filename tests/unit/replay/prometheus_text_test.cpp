#include <regex>
#include <set>

#include <gtest/gtest.h>

#include "replay_fixture.h"

namespace dsv4rt::replay::test {
namespace {

// The grammar of the text format: https://prometheus.io/docs/instrumenting/exposition_formats.
TEST(PrometheusText, EveryLineIsAHelpATypeOrASampleOfTheMetricBefore) {
  ModelReplayOptions options = small_options();
  options.replay.service_levels = *ServiceLevels::parse("ttft:100");
  const auto summary = run_model(generate({.requests = 30, .shared_prompts = 2}), options);
  ASSERT_OK(summary);
  const std::string text = prometheus_text(*summary);
  const std::string label = R"re([a-z_]+="(?:[^"\\\n]|\\["\\n])*")re";
  const std::regex sample("([a-z_0-9]+?)(_sum|_count)?(\\{" + label + "(?:," + label + ")*\\})? (-?[0-9.e+-]+)");
  std::string current;
  std::set<std::string> metrics;
  ASSERT_EQ(text.back(), '\n');
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    if (line.starts_with("# HELP ")) {
      current = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(metrics.insert(current).second) << line;
    } else if (line.starts_with("# TYPE ")) {
      EXPECT_EQ(line.substr(7, current.size()), current);
    } else {
      std::smatch match;
      ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
      EXPECT_EQ(match[1].str() + (current.ends_with(match[2].str()) ? match[2].str() : ""), current) << line;
    }
  }
  EXPECT_GT(metrics.size(), 20U);
  EXPECT_NE(text.find("dsv4rt_replay_requests_ended_total{outcome=\"finished\"} 30\n"), std::string::npos);
  EXPECT_NE(text.find("dsv4rt_replay_cache_blocks{role=\"HCA_KV\"}"), std::string::npos);
  // Quotes and backslashes of a label are escaped.
  EXPECT_NE(text.find("device=\"a \\\"test\\\" machine\\\\\""), std::string::npos);
}

}  // namespace
}  // namespace dsv4rt::replay::test
