#include "base/fixed_divisor.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace dsv4rt {
namespace {

void expect_divides(std::int32_t divisor, std::uint32_t value) {
  const FixedDivisor fixed(divisor);
  const auto by = static_cast<std::uint32_t>(divisor);
  ASSERT_EQ(fixed.quotient(value), value / by) << value << " / " << divisor;
  ASSERT_EQ(fixed.remainder(value), value % by) << value << " % " << divisor;
}

constexpr std::int32_t kGreatest = std::numeric_limits<std::int32_t>::max();
static_assert(FixedDivisor::kMostValues == std::int64_t{kGreatest} + 1);

TEST(FixedDivisorTest, SmallDivisorsAroundTheirMultiples) {
  for (std::int32_t divisor = 1; divisor <= 1024; ++divisor) {
    const std::int32_t greatest_multiple = kGreatest / divisor * divisor;
    for (const std::int32_t multiple : {0, divisor, 1000 / divisor * divisor, greatest_multiple}) {
      for (std::int64_t value = std::int64_t{multiple} - 1; value <= std::int64_t{multiple} + 1; ++value) {
        if (value >= 0 && value <= kGreatest) expect_divides(divisor, static_cast<std::uint32_t>(value));
      }
    }
  }
}

TEST(FixedDivisorTest, AnyDivisorAndValue) {
  std::mt19937 random(0);
  const auto any = [&] { return static_cast<std::uint32_t>(random()) >> 1U; };
  for (int i = 0; i < 1'000'000; ++i) {
    const std::uint32_t dropped_bits = any() % 31U;
    expect_divides(std::max(1, static_cast<std::int32_t>(any() >> dropped_bits)), any());
  }
  for (const std::int32_t divisor : {1, 2, 3, 7, 1 << 30, (1 << 30) + 1, kGreatest - 1, kGreatest}) {
    expect_divides(divisor, 0);
    expect_divides(divisor, static_cast<std::uint32_t>(divisor) - 1);
    expect_divides(divisor, static_cast<std::uint32_t>(divisor));
    expect_divides(divisor, kGreatest);
  }
}

}  // namespace
}  // namespace dsv4rt
