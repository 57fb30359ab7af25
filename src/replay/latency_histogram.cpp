#include "replay/latency_histogram.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace dsv4rt::replay {
namespace {

constexpr double kLeast = 1e-6;
constexpr double kGreatest = 1e9;

std::size_t buckets(double log_growth) {
  return static_cast<std::size_t>(std::log(kGreatest / kLeast) / log_growth) + 1;
}

}  // namespace

// Bucket b holds [kLeast * growth^b, kLeast * growth^(b + 1)) and stands for the mean of its values.
LatencyHistogram::LatencyHistogram(double relative_error)
    : log_growth_(std::log1p(relative_error)), counts_(buckets(log_growth_)), sums_(counts_.size()) {}

void LatencyHistogram::add(double value) {
  const double within = std::clamp(value, kLeast, kGreatest);
  const auto at = static_cast<std::size_t>(std::log(within / kLeast) / log_growth_);
  const std::size_t bucket = std::min(at, counts_.size() - 1);
  ++counts_[bucket];
  sums_[bucket] += value;
  least_ = count_ == 0 ? value : std::min(least_, value);
  greatest_ = count_ == 0 ? value : std::max(greatest_, value);
  sum_ += value;
  ++count_;
}

void LatencyHistogram::add(const LatencyHistogram& other) {
  DSV4RT_CHECK(counts_.size() == other.counts_.size());
  if (other.count_ == 0) return;
  for (std::size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    counts_[bucket] += other.counts_[bucket];
    sums_[bucket] += other.sums_[bucket];
  }
  least_ = count_ == 0 ? other.least_ : std::min(least_, other.least_);
  greatest_ = count_ == 0 ? other.greatest_ : std::max(greatest_, other.greatest_);
  sum_ += other.sum_;
  count_ += other.count_;
}

double LatencyHistogram::value_of(std::size_t bucket) const {
  return sums_[bucket] / static_cast<double>(counts_[bucket]);
}

double LatencyHistogram::value_of_rank(std::int64_t rank) const {
  if (rank <= 0) return least_;
  if (rank >= count_ - 1) return greatest_;
  std::int64_t below = 0;
  for (std::size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    below += counts_[bucket];
    if (below > rank) return value_of(bucket);
  }
  return greatest_;
}

double LatencyHistogram::percentile(double percent) const {
  if (count_ == 0) return 0;
  const double rank = percent / 100 * static_cast<double>(count_ - 1);
  const double whole = std::floor(rank);
  const double a = value_of_rank(static_cast<std::int64_t>(whole));
  const double b = value_of_rank(static_cast<std::int64_t>(whole) + 1);
  return rank > whole ? a + (b - a) * (rank - whole) : a;
}

std::vector<std::pair<double, double>> LatencyHistogram::distribution(std::size_t points) const {
  std::vector<std::pair<double, double>> result;
  if (count_ == 0 || points == 0) return result;
  const double step = 1.0 / static_cast<double>(points);
  std::int64_t below = 0;
  double next = step;
  for (std::size_t bucket = 0; bucket < counts_.size() && below < count_; ++bucket) {
    if (counts_[bucket] == 0) continue;
    below += counts_[bucket];
    const double share = static_cast<double>(below) / static_cast<double>(count_);
    if (share + 1e-12 < next && below < count_) continue;
    result.emplace_back(below == count_ ? greatest_ : value_of(bucket), share);
    while (next <= share + 1e-12) next += step;
  }
  return result;
}

}  // namespace dsv4rt::replay
