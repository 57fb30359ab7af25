#include <algorithm>

#include "report/charts.h"
#include "report/markup.h"

namespace dsv4rt::report {

std::string capacity_chart(const CapacityChart& chart) {
  double least = 0;
  double greatest = 0;
  double most = 0;
  for (const CapacityCurve& curve : chart.curves) {
    for (const auto& [capacity, value] : curve.points) {
      if (least == 0 || capacity < least) least = capacity;
      greatest = std::max(greatest, capacity);
      most = std::max(most, value);
    }
    most = std::max(most, curve.unlimited.value_or(0));
  }
  if (least <= 0) return "";
  // A single capacity stands in the middle.
  const Axis x = greatest > least ? Axis::logarithmic(least, greatest, PlotArea::across(), short_number)
                                  : Axis::logarithmic(least / 2, least * 2, PlotArea::across(), short_number);
  Plot plot(x, Axis::linear(0, most, PlotArea::upright(), true, chart.y_label), "tokens that the cache can hold",
            chart.heading);
  std::vector<LegendEntry> legend;
  for (const CapacityCurve& curve : chart.curves) {
    plot.line(curve.points, curve.style);
    plot.dots(curve.points, curve.style);
    legend.push_back({curve.style, curve.name});
  }
  // All policies agree where nothing has to leave.
  if (!chart.curves.empty() && chart.curves.front().unlimited) plot.mark_y(*chart.curves.front().unlimited, "no limit");
  return figure(chart.heading, chart.what, legend, plot.svg());
}

}  // namespace dsv4rt::report
