// Ticks are round, labels have room, positions are those of the values.
#include "report/axis.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "report/markup.h"

namespace dsv4rt::report::test {
namespace {

constexpr AxisLine kAcross{58, 506, false};
constexpr AxisLine kUpright{188, 24, true};

std::vector<std::string> labels(const Axis& axis) {
  std::vector<std::string> found;
  for (const Tick& tick : axis.ticks()) found.push_back(tick.label);
  return found;
}

TEST(Axis, LinearTicksAreRoundAndReachTheGreatestValue) {
  const Axis axis = Axis::linear(0, 93, kUpright, true, short_number);
  EXPECT_EQ(labels(axis), (std::vector<std::string>{"0", "20", "40", "60", "80", "100"}));
  EXPECT_EQ(axis.high(), 100);
  EXPECT_DOUBLE_EQ(axis.position(0), 188);
  EXPECT_DOUBLE_EQ(axis.position(50), 106);
  EXPECT_DOUBLE_EQ(axis.position(1000), 24) << "beyond the end";
  const Axis exact = Axis::linear(0, 3.19, kAcross, false, short_number);
  EXPECT_EQ(exact.high(), 3.19);
  EXPECT_EQ(labels(exact).back(), "3.0");
}

TEST(Axis, LogarithmicTicksAreFewerOnWiderAxes) {
  EXPECT_EQ(labels(Axis::logarithmic(3, 60, kAcross, short_ms)),
            (std::vector<std::string>{"5\xc2\xa0ms", "10\xc2\xa0ms", "20\xc2\xa0ms", "50\xc2\xa0ms"}));
  const Axis wide = Axis::logarithmic(0.01, 1e5, kAcross, short_ms);
  EXPECT_LE(wide.ticks().size(), 8U);
  EXPECT_GE(wide.ticks().size(), 3U);
  EXPECT_NEAR(wide.position(std::sqrt(0.01 * 1e5)), (58 + 506) / 2.0, 1e-6);
}

TEST(Axis, NoTwoLabelsTouchWhateverTheValues) {
  for (int exponent = -17; exponent <= 17; ++exponent) {
    for (const double factor : {1.0, 1.7, 3.3, 9.99}) {
      const double high = factor * std::pow(10.0, exponent);
      for (const AxisLine& line : {kAcross, kUpright}) {
        for (const TickLabel& label : {TickLabel(short_number), TickLabel(short_ms), TickLabel(percent)}) {
          for (const bool to_tick : {false, true}) {
            const Axis axis = Axis::linear(0, high, line, to_tick, label);
            EXPECT_LE(axis.ticks().size(), 20U);
            EXPECT_GE(axis.high(), high);
            const std::vector<Tick>& ticks = axis.ticks();
            for (std::size_t i = 1; i < ticks.size(); ++i) {
              const double apart = std::abs(ticks[i].at_px - ticks[i - 1].at_px);
              const double needed = line.upright ? kLabelFontPx
                                                 : (text_width_px(ticks[i].label, kLabelFontPx) +
                                                    text_width_px(ticks[i - 1].label, kLabelFontPx)) /
                                                       2;
              EXPECT_GT(apart, needed) << high << " " << ticks[i].label;
            }
          }
        }
      }
    }
  }
}

TEST(Axis, ValuesWithoutASpanHaveOneNevertheless) {
  for (const double high : {0.0, -5.0}) {
    const Axis axis = Axis::linear(0, high, kUpright, true, short_number);
    EXPECT_GT(axis.high(), axis.low());
    EXPECT_FALSE(std::isnan(axis.position(high)));
  }
}

TEST(Axis, LabelsTellNeighboursApart) {
  EXPECT_EQ(short_number(1500, 500), "1.5k");
  EXPECT_EQ(short_number(2000, 500), "2.0k");
  EXPECT_EQ(short_number(1998, 2), "1998");
  EXPECT_EQ(short_number(4e6, 4e6), "4M");
  EXPECT_EQ(short_number(0.25, 0.05), "0.25");
  EXPECT_EQ(short_ms(2500, 500), "2.5\xc2\xa0s");
  EXPECT_EQ(percent(0.2, 0.2), "20\xc2\xa0%");
  EXPECT_EQ(percent(0.005, 0.005), "0.5\xc2\xa0%");
}

}  // namespace
}  // namespace dsv4rt::report::test
