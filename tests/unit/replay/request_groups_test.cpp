// Groups of neighbours and counts over time: whatever the number of requests, nothing is lost and memory is fixed.
#include "replay/request_groups.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "replay/event_series.h"

namespace dsv4rt::replay::test {
namespace {

RequestRecord record(std::int64_t index) {
  RequestRecord made;
  made.index = index;
  made.input_tokens = 10;
  made.output_tokens = 3;
  made.admitted_ns = 0;
  made.first_token_ns = (index + 1) * 1'000'000;
  made.last_token_ns = made.end_ns = made.first_token_ns + 4'000'000;
  return made;
}

TEST(RequestGroups, AreNeighboursWhateverTheOrderOfEnds) {
  RequestGroups upward;
  RequestGroups downward;
  for (std::int64_t i = 0; i < 1000; ++i) upward.add(record(i), i % 2 == 0);
  for (std::int64_t i = 999; i >= 0; --i) downward.add(record(i), i % 2 == 0);
  for (const RequestGroups& groups : {upward, downward}) {
    ASSERT_EQ(groups.size(), 32);
    ASSERT_EQ(groups.used(), 32U);
    std::int64_t requests = 0;
    for (std::size_t g = 0; g < groups.used(); ++g) {
      const RequestGroup& group = groups[g];
      requests += group.requests;
      EXPECT_EQ(group.requests, g < 31 ? 32 : 8);
      EXPECT_EQ(group.kept_service_levels, group.requests / 2);
      EXPECT_EQ(group.admitted_input_tokens, 10 * group.requests);
      EXPECT_EQ(group.ttft_ms.least(), static_cast<double>(g * 32 + 1));
      EXPECT_EQ(group.ttft_ms.greatest(), static_cast<double>(g * 32) + static_cast<double>(group.requests));
      EXPECT_EQ(group.tpot_ms.mean(), 2);
      EXPECT_EQ(group.e2el_ms.count(), group.requests);
    }
    EXPECT_EQ(requests, 1000);
  }
}

TEST(RequestGroups, HistogramsAddUp) {
  LatencyHistogram parts;
  LatencyHistogram whole;
  for (int part = 0; part < 3; ++part) {
    LatencyHistogram one;
    for (int i = 0; i < 50 * part; ++i) {
      one.add(i * 1.37 + part);
      whole.add(i * 1.37 + part);
    }
    parts.add(one);
  }
  EXPECT_EQ(parts.count(), whole.count());
  EXPECT_EQ(parts.least(), whole.least());
  EXPECT_EQ(parts.greatest(), whole.greatest());
  EXPECT_DOUBLE_EQ(parts.mean(), whole.mean());
  for (const double percent : {1.0, 50.0, 99.0}) EXPECT_DOUBLE_EQ(parts.percentile(percent), whole.percentile(percent));
}

TEST(EventSeries, CountsStayInTheirIntervals) {
  EventSeries series({"a", "b"});
  for (std::int64_t i = 0; i < 10'000; ++i) series.add(i * 700'000, 0, 2);
  series.add(3'500'000'000, 1);
  EXPECT_EQ(series.interval_ns(), 16'000'000);
  EXPECT_LE(series.intervals(), EventSeries::kMaxIntervals);
  std::int64_t a = 0;
  std::int64_t b = 0;
  for (std::size_t i = 0; i < series.intervals(); ++i) {
    const std::int64_t begin = static_cast<std::int64_t>(i) * series.interval_ns();
    // Events are 0.7 ms apart: as many as lie in the interval.
    const auto before = [](std::int64_t ns) { return std::min<std::int64_t>(10'000, (ns + 699'999) / 700'000); };
    EXPECT_EQ(series.count(i, 0), 2 * (before(begin + series.interval_ns()) - before(begin))) << i;
    a += series.count(i, 0);
    b += series.count(i, 1);
    EXPECT_EQ(series.count(i, 1), i == 3'500 / 16 ? 1 : 0);
  }
  EXPECT_EQ(a, 20'000);
  EXPECT_EQ(b, 1);
}

}  // namespace
}  // namespace dsv4rt::replay::test
