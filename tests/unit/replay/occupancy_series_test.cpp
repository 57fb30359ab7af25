#include "replay/occupancy_series.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "replay/seeded_hash.h"

namespace dsv4rt::replay {
namespace {

TEST(OccupancySeries, MeansAreWeightedByTime) {
  OccupancySeries series({"a", "b"});
  const std::vector<double> low{1, 10};
  const std::vector<double> high{3, 0};
  series.add(0, 250'000, low);
  series.add(250'000, 1'000'000, high);
  series.add(1'000'000, 3'500'000, low);
  EXPECT_EQ(series.interval_ns(), 1'000'000);
  ASSERT_EQ(series.intervals(), 4U);
  EXPECT_DOUBLE_EQ(series.mean(0, 0), 2.5);
  EXPECT_DOUBLE_EQ(series.mean(0, 1), 2.5);
  EXPECT_EQ(series.greatest(0, 0), 3);
  EXPECT_EQ(series.greatest(0, 1), 10);
  EXPECT_DOUBLE_EQ(series.mean(3, 0), 1);  // over the half that was seen
}

TEST(OccupancySeries, AnyLengthFitsAndNothingIsLost) {
  OccupancySeries series({"x"});
  double area = 0;
  double most = 0;
  std::int64_t at = 0;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const auto length = static_cast<std::int64_t>(scramble(i) % 90'000'000);
    const std::vector<double> value{static_cast<double>(scramble(i + 77) % 100)};
    series.add(at, at + length, value);
    area += value[0] * static_cast<double>(length);
    most = std::max(most, value[0]);
    at += length;
  }
  ASSERT_LE(series.intervals(), OccupancySeries::kMaxIntervals);
  EXPECT_GT(series.intervals(), OccupancySeries::kMaxIntervals / 2 - 1);
  double sum = 0;
  double greatest = 0;
  for (std::size_t i = 0; i < series.intervals(); ++i) {
    const std::int64_t begin = static_cast<std::int64_t>(i) * series.interval_ns();
    sum += series.mean(i, 0) * static_cast<double>(std::min(at, begin + series.interval_ns()) - begin);
    greatest = std::max(greatest, series.greatest(i, 0));
  }
  EXPECT_NEAR(sum / area, 1, 1e-9);
  EXPECT_EQ(greatest, most);
}

}  // namespace
}  // namespace dsv4rt::replay
