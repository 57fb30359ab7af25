#include <algorithm>

#include "report/charts.h"
#include "report/markup.h"

namespace dsv4rt::report {
namespace {

// A span of values this many times their least one is drawn on a logarithmic axis.
constexpr double kWideSpan = 8;

std::string level_text(double ms) {
  return ms >= 1000 ? number_text(ms / 1000) + "\xc2\xa0s" : number_text(ms) + "\xc2\xa0ms";
}

Axis value_axis(double low, double high, std::optional<double> level_ms) {
  if (level_ms) {
    low = std::min(low, *level_ms);
    high = std::max(high, *level_ms);
  }
  if (low <= 0 || high < kWideSpan * low) return Axis::linear(0, high, PlotArea::across(), true, short_ms);
  return Axis::logarithmic(low, high, PlotArea::across(), short_ms);
}

}  // namespace

std::string distribution_chart(const std::string& heading, const std::string& what, const Field& values,
                               const Field& latency, std::optional<double> level_ms) {
  Points points;
  double low = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i][0].number();
    // The few values of 0 (a queue that is empty) lie at the edge of a logarithmic axis.
    if (low == 0) low = value;
    points.emplace_back(value, std::clamp(values[i][1].number(), 0.0, 1.0));
  }
  if (points.empty()) return "";
  const double high = points.back().first;
  if (low <= 0 && high > 0) low = std::max(0.001, high / 1e6);
  Plot plot(value_axis(low, high, level_ms), Axis::linear(0, 1, PlotArea::upright(), true, percent), "",
            heading + ": share of values up to a time");
  points.insert(points.begin(), {points.front().first, 0});
  plot.line(points, "c1");
  Points marks;
  for (const auto& [name, share] : {std::pair{"p50", 0.5}, std::pair{"p90", 0.9}, std::pair{"p99", 0.99}}) {
    marks.emplace_back(latency[name].number(), share);
  }
  plot.dots(marks, "c1");
  if (level_ms) plot.mark_x(*level_ms, "service level " + level_text(*level_ms));
  const std::string caption = what + " Dots: p50 " + shown_number(latency["p50"]) + ", p90 " +
                              shown_number(latency["p90"]) + ", p99 " + shown_number(latency["p99"]) + "&nbsp;ms.";
  return figure(heading, caption, {}, plot.svg());
}

}  // namespace dsv4rt::report
