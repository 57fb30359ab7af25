#include <algorithm>

#include "report/charts.h"
#include "report/markup.h"

namespace dsv4rt::report {
namespace {

// A limit is drawn if values come within this part of it; a far one would flatten them.
constexpr double kNearLimit = 0.5;

struct TimeUnit {
  double ms;
  const char* name;
};

TimeUnit unit_for(double span_ms) {
  if (span_ms < 1'000) return {1, "milliseconds"};
  if (span_ms < 180'000) return {1'000, "seconds"};
  if (span_ms < 3 * 3'600'000.0) return {60'000, "minutes"};
  return {3'600'000, "hours"};
}

// Each value lasts for one interval.
Points steps_of(const std::vector<double>& values, double interval) {
  Points points;
  for (std::size_t i = 0; i < values.size(); ++i) {
    points.emplace_back(static_cast<double>(i) * interval, values[i]);
    points.emplace_back(static_cast<double>(i + 1) * interval, values[i]);
  }
  return points;
}

}  // namespace

std::string time_chart(const TimeChart& chart) {
  std::size_t intervals = 0;
  for (const TimeSeries& series : chart.series) intervals = std::max(intervals, series.values.size());
  if (intervals == 0 || chart.interval_ms <= 0) return "";
  const double span_ms = chart.interval_ms * static_cast<double>(intervals);
  const TimeUnit unit = unit_for(span_ms);
  const double interval = chart.interval_ms / unit.ms;

  // What each series is drawn at: stacked ones on those before.
  std::vector<std::vector<double>> tops;
  std::vector<double> stack(intervals);
  std::vector<std::vector<double>> bottoms;
  double most = 0;
  for (const TimeSeries& series : chart.series) {
    std::vector<double> top(intervals);
    bottoms.emplace_back(series.stacked ? stack : std::vector<double>(intervals));
    for (std::size_t i = 0; i < series.values.size(); ++i) top[i] = bottoms.back()[i] + series.values[i];
    if (series.stacked) stack = top;
    most = std::max(most, *std::max_element(top.begin(), top.end()));
    tops.push_back(std::move(top));
  }
  const bool near_limit = chart.limit && most >= kNearLimit * *chart.limit;
  if (near_limit) most = std::max(most, *chart.limit);

  Plot plot(Axis::linear(0, span_ms / unit.ms, PlotArea::across(), false, short_number),
            Axis::linear(0, most, PlotArea::upright(), true, chart.y_label), unit.name, chart.heading + " over time");
  std::vector<LegendEntry> legend;
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const TimeSeries& series = chart.series[s];
    const Points top = steps_of(tops[s], interval);
    if (series.kind == TimeSeries::Kind::kArea) {
      plot.area(steps_of(bottoms[s], interval), top, series.style);
    } else {
      plot.line(top, series.style);
    }
    legend.push_back({series.style + (series.kind == TimeSeries::Kind::kArea ? " swatch" : ""), series.name});
  }
  if (near_limit) plot.mark_y(*chart.limit, chart.limit_name);
  return figure(chart.heading, chart.what, legend, plot.svg());
}

}  // namespace dsv4rt::report
