#include "base/arithmetic.h"

#include <limits>

#include <gtest/gtest.h>

namespace dsv4rt {
namespace {

TEST(Arithmetic, CeilDivAndRoundUpAtTheEdges) {
  EXPECT_EQ(ceil_div(0, 128), 0);
  EXPECT_EQ(ceil_div(1, 128), 1);
  EXPECT_EQ(ceil_div(128, 128), 1);
  EXPECT_EQ(ceil_div(129, 128), 2);
  EXPECT_EQ(round_up(575, 576), 576);
  EXPECT_EQ(round_up(576, 576), 576);
  EXPECT_EQ(round_up(std::int64_t{1} << 40, std::int64_t{7}) % 7, 0);
}

TEST(Arithmetic, CheckedOperationsRefuseWhatDoesNotFit) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(checked_multiply(kMax, 1), kMax);
  EXPECT_EQ(checked_multiply(kMax, 0), 0u);
  EXPECT_EQ(checked_multiply(kMax, 2), std::nullopt);
  EXPECT_EQ(checked_multiply(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(checked_multiply((std::uint64_t{1} << 32) - 1, (std::uint64_t{1} << 32) + 1), kMax);
  EXPECT_EQ(checked_add(kMax, 0), kMax);
  EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
}

}  // namespace
}  // namespace dsv4rt
