#include "replay/latency_histogram.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "replay/seeded_hash.h"

namespace dsv4rt::replay {
namespace {

// numpy.percentile of sorted values.
double exact(const std::vector<double>& sorted, double percent) {
  const double rank = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const double share = rank - std::floor(rank);
  return below + 1 < sorted.size() ? sorted[below] + (sorted[below + 1] - sorted[below]) * share : sorted.back();
}

TEST(LatencyHistogram, PercentilesAreThoseOfTheValuesWithinTheError) {
  for (const std::size_t count : {1U, 2U, 3U, 10U, 101U, 20'000U}) {
    LatencyHistogram histogram;
    std::vector<double> values;
    for (std::size_t i = 0; i < count; ++i) {
      values.push_back(std::exp(20 * unit_value(scramble(i + 1)) - 8));  // 0.3 us to 160 s, in ms
      histogram.add(values.back());
    }
    std::sort(values.begin(), values.end());
    for (const double percent : {0.0, 1.0, 50.0, 90.0, 95.0, 99.0, 100.0}) {
      const double expected = exact(values, percent);
      EXPECT_NEAR(histogram.percentile(percent), expected, LatencyHistogram::kRelativeError * expected * 1.0001)
          << count << " " << percent;
    }
    EXPECT_EQ(histogram.least(), values.front());
    EXPECT_EQ(histogram.greatest(), values.back());
    EXPECT_NEAR(histogram.mean(), std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(count),
                1e-9 * histogram.sum());
  }
}

TEST(LatencyHistogram, EmptyZeroAndHugeValues) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.percentile(99), 0);
  EXPECT_TRUE(histogram.distribution(10).empty());
  histogram.add(0);
  EXPECT_EQ(histogram.percentile(50), 0);
  histogram.add(1e12);
  histogram.add(5);
  EXPECT_EQ(histogram.percentile(100), 1e12);
  EXPECT_NEAR(histogram.percentile(50), 5, 0.01);
}

TEST(LatencyHistogram, TheDistributionRisesToOne) {
  LatencyHistogram histogram;
  for (int i = 1; i <= 1000; ++i) histogram.add(i);
  const auto points = histogram.distribution(50);
  ASSERT_GE(points.size(), 45U);
  EXPECT_LE(points.size(), 51U);
  for (std::size_t i = 1; i < points.size(); ++i) {
    EXPECT_GT(points[i].first, points[i - 1].first);
    EXPECT_GT(points[i].second, points[i - 1].second);
    EXPECT_NEAR(points[i].first, points[i].second * 1000, 3);
  }
  EXPECT_EQ(points.back().second, 1);
}

}  // namespace
}  // namespace dsv4rt::replay
