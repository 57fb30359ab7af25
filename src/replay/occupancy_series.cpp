#include "replay/occupancy_series.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dsv4rt::replay {

OccupancySeries::OccupancySeries(std::vector<std::string> columns)
    : columns_(std::move(columns)),
      seen_ns_(kMaxIntervals),
      sums_(kMaxIntervals * columns_.size()),
      greatest_(kMaxIntervals * columns_.size()) {}

void OccupancySeries::halve() {
  const std::size_t width = columns_.size();
  for (std::size_t i = 0; i < kMaxIntervals; ++i) {
    const bool merged = i < kMaxIntervals / 2;
    seen_ns_[i] = merged ? seen_ns_[2 * i] + seen_ns_[2 * i + 1] : 0;
    for (std::size_t c = 0; c < width; ++c) {
      const std::size_t a = 2 * i * width + c;
      const std::size_t b = a + width;
      sums_[i * width + c] = merged ? sums_[a] + sums_[b] : 0;
      greatest_[i * width + c] = merged ? std::max(greatest_[a], greatest_[b]) : 0;
    }
  }
  interval_ns_ *= 2;
  used_ = (used_ + 1) / 2;
}

void OccupancySeries::add(std::int64_t begin_ns, std::int64_t end_ns, std::span<const double> values) {
  DSV4RT_CHECK(values.size() == columns_.size());
  if (end_ns <= begin_ns) return;
  while ((end_ns - 1) / interval_ns_ >= static_cast<std::int64_t>(kMaxIntervals)) halve();
  for (std::int64_t at = begin_ns; at < end_ns;) {
    const std::int64_t interval = at / interval_ns_;
    const std::int64_t stop = std::min(end_ns, (interval + 1) * interval_ns_);
    const auto i = static_cast<std::size_t>(interval);
    const auto ns = static_cast<double>(stop - at);
    seen_ns_[i] += ns;
    for (std::size_t c = 0; c < values.size(); ++c) {
      sums_[i * values.size() + c] += values[c] * ns;
      double& greatest = greatest_[i * values.size() + c];
      greatest = std::max(greatest, values[c]);
    }
    used_ = std::max(used_, i + 1);
    at = stop;
  }
}

double OccupancySeries::mean(std::size_t interval, std::size_t column) const {
  const double seen = seen_ns_[interval];
  return seen > 0 ? sums_[interval * columns_.size() + column] / seen : 0;
}

double OccupancySeries::greatest(std::size_t interval, std::size_t column) const {
  return greatest_[interval * columns_.size() + column];
}

}  // namespace dsv4rt::replay
