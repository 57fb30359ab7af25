// Marks of a backend whose operations are done when they return.
#pragma once

#include <chrono>

#include "backend/time_marks.h"

namespace dsv4rt {

class HostTimeMarks final : public TimeMarks {
 public:
  Status mark() override {
    marks_.push_back(Clock::now());
    return {};
  }
  Result<std::vector<double>> take() override {
    std::vector<double> times;
    for (const Clock::time_point mark : marks_) {
      times.push_back(std::chrono::duration<double, std::micro>(mark - marks_.front()).count());
    }
    marks_.clear();
    return times;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> marks_;
};

}  // namespace dsv4rt
