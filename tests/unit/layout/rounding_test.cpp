#include "layout/rounding.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "dsv4rt/model.h"
#include "unit/layout/float_samples.h"

namespace dsv4rt {
namespace {

std::vector<float> spread_values(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(std::ldexp(normal(random), i % 7 - 5));
  return values;
}

// Nearest multiple of the E4M3 spacing at `value`, for |value| <= 448: nearbyint ties to even.
double on_e4m3_grid(double value) {
  const int exponent = value == 0.0 ? -6 : std::max(std::ilogb(value), -6);
  const double step = std::ldexp(1.0, exponent - 3);
  return std::nearbyint(value / step) * step;
}

TEST(Rounding, ActivationsRoundInBlocksOf128WithAShortLastBlock) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{127}, std::size_t{128}, std::size_t{129},
                                  std::size_t{448}, std::size_t{1024}}) {
    SCOPED_TRACE(count);
    const auto input = spread_values(static_cast<int>(count), 5);
    auto rounded = input;
    rounded.push_back(12345.0f);  // canary
    round_activation_fp8(rounded.data(), count);
    EXPECT_EQ(rounded.back(), 12345.0f);
    for (std::size_t first = 0; first < count; first += 128) {
      const std::size_t last = std::min(first + 128, count);
      double amax = 1e-4;
      for (std::size_t i = first; i < last; ++i) amax = std::max(amax, std::fabs(static_cast<double>(input[i])));
      int exponent = -40;
      while (std::ldexp(448.0, exponent) < amax) ++exponent;
      const double scale = std::ldexp(1.0, exponent);
      for (std::size_t i = first; i < last; ++i) {
        ASSERT_EQ(rounded[i], on_e4m3_grid(input[i] / scale) * scale) << "value " << i;
      }
    }
  }
}

TEST(Rounding, ActivationsWithNonFiniteValues) {
  std::vector<float> values(128, 1.0f);
  values[0] = kQuietNan;
  values[1] = -kInfinity;
  values[127] = kInfinity;
  values[126] = std::numeric_limits<float>::denorm_min();
  values[125] = -0.0f;
  round_activation_fp8(values.data(), values.size());
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_TRUE(std::isnan(values[1])) << "not the largest code";
  EXPECT_TRUE(std::isnan(values[127]));
  EXPECT_EQ(values[126], 0.0f);
  EXPECT_TRUE(std::signbit(values[125]) && values[125] == 0.0f);
  for (std::size_t i = 2; i < 125; ++i) EXPECT_EQ(values[i], 1.0f) << "the scale is that of the finite values";
}

TEST(Rounding, ThroughFp8DsMlaEqualsBlocksOf64AndBf16) {
  auto values = spread_values(kHeadDim, 9);
  auto expected = values;
  for (int group = 0; group < 7; ++group) round_activation_fp8(expected.data() + group * 64, 64);
  for (std::size_t i = kNopeDim; i < expected.size(); ++i) {
    const double step = std::ldexp(1.0, std::ilogb(expected[i]) - 7);
    expected[i] = static_cast<float>(std::nearbyint(static_cast<double>(expected[i]) / step) * step);
  }
  round_through(RowFormat::kFp8DsMla, values.data());
  EXPECT_EQ(values, expected);
}

TEST(Rounding, ThroughMxfp4UsesTheGrid) {
  std::vector<float> values(kIndexHeadDim, 0.0f);
  const std::vector<float> input = {6.0f, 5.0f, 4.9f, 2.5f, -3.5f, 0.25f, -0.75f, 1.25f};
  const std::vector<float> expected = {6.0f, 4.0f, 4.0f, 2.0f, -4.0f, 0.0f, -1.0f, 1.0f};
  std::copy(input.begin(), input.end(), values.begin() + 32);
  round_through(IndexKeyFormat::kMxfp4, values.data());
  EXPECT_EQ(std::vector<float>(values.begin() + 32, values.begin() + 40), expected);
  EXPECT_EQ(values[0], 0.0f);
}

TEST(Rounding, IsIdempotentWithPowerOfTwoScales) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    for (const RowFormat format : {RowFormat::kFp8DsMla, RowFormat::kBf16}) {
      auto once = spread_values(kHeadDim, seed);
      round_through(format, once.data());
      auto twice = once;
      round_through(format, twice.data());
      ASSERT_EQ(once, twice) << "seed " << seed;
    }
    for (const IndexKeyFormat format : {IndexKeyFormat::kMxfp4, IndexKeyFormat::kFp8, IndexKeyFormat::kBf16}) {
      auto once = spread_values(kIndexHeadDim, seed);
      round_through(format, once.data());
      auto twice = once;
      round_through(format, twice.data());
      ASSERT_EQ(once, twice) << "seed " << seed;
    }
  }
}

TEST(Rounding, SmallErrorForEveryFormat) {
  const auto relative_error = [](const std::vector<float>& exact, const std::vector<float>& rounded) {
    double error = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      error += std::pow(static_cast<double>(rounded[i]) - exact[i], 2);
      norm += std::pow(static_cast<double>(exact[i]), 2);
    }
    return std::sqrt(error / norm);
  };
  const auto row = spread_values(kHeadDim, 21);
  const auto key = spread_values(kIndexHeadDim, 22);
  const auto of_row = [&](RowFormat format) {
    auto rounded = row;
    round_through(format, rounded.data());
    return relative_error(row, rounded);
  };
  const auto of_key = [&](IndexKeyFormat format) {
    auto rounded = key;
    round_through(format, rounded.data());
    return relative_error(key, rounded);
  };
  EXPECT_LT(of_row(RowFormat::kBf16), 0.003);
  EXPECT_LT(of_row(RowFormat::kFp8DsMla), 0.04);
  EXPECT_LT(of_row(RowFormat::kFp8Row), 0.04);
  EXPECT_LT(of_row(RowFormat::kNvfp4), 0.15);
  EXPECT_LT(of_key(IndexKeyFormat::kBf16), 0.003);
  EXPECT_LT(of_key(IndexKeyFormat::kFp8), 0.04);
  EXPECT_LT(of_key(IndexKeyFormat::kNvfp4), 0.15);
  EXPECT_LT(of_key(IndexKeyFormat::kMxfp4), 0.2);
}

}  // namespace
}  // namespace dsv4rt
