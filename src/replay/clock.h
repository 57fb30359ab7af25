// Time of a replay, in nanoseconds since its beginning. Integers: sums do not depend on their order, and equal runs
// give equal text.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace dsv4rt::replay {

inline constexpr double kNsPerMs = 1e6;
inline constexpr double kNsPerUs = 1e3;
inline constexpr double kNsPerS = 1e9;

constexpr double to_ms(std::int64_t ns) noexcept {
  return static_cast<double>(ns) / kNsPerMs;
}

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual std::int64_t now_ns() const = 0;
  // Returns when it is `ns`, at once if that is past.
  virtual void wait_until(std::int64_t ns) = 0;
};

// Time passes when somebody says so. One thread.
class VirtualClock : public Clock {
 public:
  [[nodiscard]] std::int64_t now_ns() const override { return now_ns_; }
  void wait_until(std::int64_t ns) override { now_ns_ = ns > now_ns_ ? ns : now_ns_; }
  void advance(std::int64_t ns) {
    DSV4RT_CHECK(ns >= 0);
    now_ns_ += ns;
  }

 private:
  std::int64_t now_ns_ = 0;
};

}  // namespace dsv4rt::replay
