#include "replay/run_metrics.h"

#include <gtest/gtest.h>

#include "replay_fixture.h"

namespace dsv4rt::replay::test {
namespace {

RequestRecord finished(double ttft_ms, double tpot_ms, std::int64_t outputs, std::int64_t index = 0) {
  RequestRecord record;
  record.index = index;
  record.input_tokens = 100;
  record.output_tokens = outputs;
  record.arrival_ns = 5'000'000;
  record.admitted_ns = 6'000'000;
  record.first_token_ns = record.arrival_ns + static_cast<std::int64_t>(ttft_ms * 1e6);
  record.last_token_ns =
      record.first_token_ns + static_cast<std::int64_t>(tpot_ms * 1e6 * static_cast<double>(outputs - 1));
  record.end_ns = record.last_token_ns;
  return record;
}

// Definitions of vLLM's serving benchmark.
TEST(RunMetrics, LatenciesAreThoseOfTheRecords) {
  const RequestRecord record = finished(100, 20, 11);
  EXPECT_DOUBLE_EQ(record.ttft_ms(), 100);
  EXPECT_DOUBLE_EQ(record.tpot_ms(), 20);
  EXPECT_DOUBLE_EQ(record.e2el_ms(), 300);
  EXPECT_DOUBLE_EQ(record.queue_ms(), 1);
  EXPECT_NEAR(record.tokens_per_s(), 111 / 0.299, 1e-9);
  EXPECT_FALSE(finished(100, 0, 1).has_tpot());
}

TEST(RunMetrics, ServiceLevelsAreAllToBeKept) {
  const auto levels = ServiceLevels::parse("ttft:100,tpot:20.5");
  ASSERT_OK(levels);
  EXPECT_TRUE(levels->kept_by(finished(100, 20, 5)));
  EXPECT_FALSE(levels->kept_by(finished(101, 20, 5)));
  EXPECT_FALSE(levels->kept_by(finished(100, 21, 5)));
  EXPECT_TRUE(levels->kept_by(finished(100, 21, 1)));  // it has no time between tokens
  EXPECT_FALSE(ServiceLevels::parse("e2el:1")->kept_by(finished(1, 1, 2)));
  for (const char* wrong :
       {"ttft", "ttft:", "ttft:0", "ttft:-1", "ttft:nan", "itl:5", "ttft:1,ttft:2", "ttft:1,", ":1", "ttft:1x"}) {
    EXPECT_TRUE(fails_with(ServiceLevels::parse(wrong), StatusCode::kInvalidArgument, {"ttft:200,tpot:50"})) << wrong;
  }
  EXPECT_FALSE(ServiceLevels::parse("")->any());
}

TEST(RunMetrics, TheSlowestAreKeptInOrder) {
  RunMetrics metrics({}, {});
  for (std::int64_t i = 0; i < 100; ++i) metrics.ended(finished(static_cast<double>((i * 37) % 100), 1, 2, i));
  ASSERT_EQ(metrics.slowest().size(), RunMetrics::kSlowest);
  for (std::size_t i = 0; i < RunMetrics::kSlowest; ++i) {
    EXPECT_DOUBLE_EQ(metrics.slowest()[i].ttft_ms(), 99 - static_cast<double>(i));
  }
}

}  // namespace
}  // namespace dsv4rt::replay::test
