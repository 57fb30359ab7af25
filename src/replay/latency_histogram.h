// Percentiles of any number of values in fixed memory: buckets whose bounds grow by a factor, so that a percentile is
// off by at most a known part of itself, and exact where a bucket's values are equal. Least, greatest and mean are
// exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dsv4rt::replay {

class LatencyHistogram {
 public:
  static constexpr double kRelativeError = 0.001;

  // For values in [0, 1e9]; smaller ones than 1e-6 count as it, larger ones as 1e9. relative_error is above 0.
  explicit LatencyHistogram(double relative_error = kRelativeError);

  void add(double value);
  // All values of another one, whose relative error is the same.
  void add(const LatencyHistogram& other);
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  [[nodiscard]] double mean() const noexcept { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  [[nodiscard]] double least() const noexcept { return count_ == 0 ? 0 : least_; }
  [[nodiscard]] double greatest() const noexcept { return greatest_; }
  [[nodiscard]] double sum() const noexcept { return sum_; }
  // percent in [0, 100]; between two values it is interpolated, as numpy.percentile does. 0 without values.
  [[nodiscard]] double percentile(double percent) const;
  // (value, share of the values up to it), ascending, at most `points` of them; the last share is 1.
  [[nodiscard]] std::vector<std::pair<double, double>> distribution(std::size_t points) const;

 private:
  [[nodiscard]] double value_of(std::size_t bucket) const;
  [[nodiscard]] double value_of_rank(std::int64_t rank) const;  // 0: the least

  double log_growth_;
  std::vector<std::int64_t> counts_;
  std::vector<double> sums_;  // one a bucket
  std::int64_t count_ = 0;
  double sum_ = 0;
  double least_ = 0;
  double greatest_ = 0;
};

}  // namespace dsv4rt::replay
