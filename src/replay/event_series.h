// Counts over time in fixed memory: intervals of equal length, which double when time goes beyond the last one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dsv4rt::replay {

class EventSeries {
 public:
  static constexpr std::size_t kMaxIntervals = 512;

  explicit EventSeries(std::vector<std::string> columns);

  // `count` more of what the column counts, at a time that is not negative. Times come in any order.
  void add(std::int64_t at_ns, std::size_t column, std::int64_t count = 1);

  [[nodiscard]] const std::vector<std::string>& columns() const noexcept { return columns_; }
  [[nodiscard]] std::int64_t interval_ns() const noexcept { return interval_ns_; }
  [[nodiscard]] std::size_t intervals() const noexcept { return used_; }
  [[nodiscard]] std::int64_t count(std::size_t interval, std::size_t column) const {
    return counts_[interval * columns_.size() + column];
  }

 private:
  void halve();

  std::vector<std::string> columns_;
  std::int64_t interval_ns_ = 1'000'000;
  std::size_t used_ = 0;
  std::vector<std::int64_t> counts_;  // [kMaxIntervals][columns]
};

}  // namespace dsv4rt::replay
