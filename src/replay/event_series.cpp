#include "replay/event_series.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dsv4rt::replay {

EventSeries::EventSeries(std::vector<std::string> columns)
    : columns_(std::move(columns)), counts_(kMaxIntervals * columns_.size()) {}

void EventSeries::halve() {
  const std::size_t width = columns_.size();
  for (std::size_t i = 0; i < kMaxIntervals; ++i) {
    const bool merged = i < kMaxIntervals / 2;
    for (std::size_t c = 0; c < width; ++c) {
      counts_[i * width + c] = merged ? counts_[2 * i * width + c] + counts_[(2 * i + 1) * width + c] : 0;
    }
  }
  interval_ns_ *= 2;
  used_ = (used_ + 1) / 2;
}

void EventSeries::add(std::int64_t at_ns, std::size_t column, std::int64_t count) {
  DSV4RT_CHECK(at_ns >= 0 && column < columns_.size());
  while (at_ns / interval_ns_ >= static_cast<std::int64_t>(kMaxIntervals)) halve();
  const auto interval = static_cast<std::size_t>(at_ns / interval_ns_);
  used_ = std::max(used_, interval + 1);
  counts_[interval * columns_.size() + column] += count;
}

}  // namespace dsv4rt::replay
