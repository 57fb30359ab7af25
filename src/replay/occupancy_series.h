// Values over time in fixed memory: intervals of equal length, which double when time goes beyond the last one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dsv4rt::replay {

class OccupancySeries {
 public:
  static constexpr std::size_t kMaxIntervals = 512;

  explicit OccupancySeries(std::vector<std::string> columns);

  // The values from begin_ns to end_ns, one a column. Calls come in the order of time.
  void add(std::int64_t begin_ns, std::int64_t end_ns, std::span<const double> values);

  [[nodiscard]] const std::vector<std::string>& columns() const noexcept { return columns_; }
  [[nodiscard]] std::int64_t interval_ns() const noexcept { return interval_ns_; }
  [[nodiscard]] std::size_t intervals() const noexcept { return used_; }
  // Over the part of the interval that was seen.
  [[nodiscard]] double mean(std::size_t interval, std::size_t column) const;
  [[nodiscard]] double greatest(std::size_t interval, std::size_t column) const;

 private:
  void halve();

  std::vector<std::string> columns_;
  std::int64_t interval_ns_ = 1'000'000;
  std::size_t used_ = 0;
  std::vector<double> seen_ns_;   // [kMaxIntervals]
  std::vector<double> sums_;      // [kMaxIntervals][columns], value times nanoseconds
  std::vector<double> greatest_;  // [kMaxIntervals][columns]
};

}  // namespace dsv4rt::replay
