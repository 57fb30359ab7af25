// The charts of a report, each a picture with its heading, legend and drawing. One concept a source file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/document.h"
#include "report/plot.h"

namespace dsv4rt::report {

struct LegendEntry {
  std::string style;  // what Plot::line takes; "swatch" marks an area
  std::string name;
};
// <figure> of a heading, a sentence on what is drawn (escaped already), a legend and the drawing.
std::string figure(const std::string& heading, const std::string& what, const std::vector<LegendEntry>& legend,
                   const std::string& svg);

// distribution_chart.cpp: share of values up to x, `values` being [[value in ms, share], ...], with percentiles of
// `latency` ({count, p50, p90, p99, ...}) and the service level if one is given. Empty without values.
std::string distribution_chart(const std::string& heading, const std::string& what, const Field& values,
                               const Field& latency, std::optional<double> level_ms);

// time_chart.cpp: numbers over time in equal intervals.
struct TimeSeries {
  enum class Kind { kArea, kLine, kSteps };
  std::string name;
  std::string style;
  Kind kind = Kind::kLine;
  bool stacked = false;  // an area on top of the areas before it
  std::vector<double> values;
};
struct TimeChart {
  std::string heading;
  std::string what;
  double interval_ms = 0;
  std::vector<TimeSeries> series;
  std::optional<double> limit;  // drawn as a level line where it is near
  std::string limit_name;
  TickLabel y_label;
};
std::string time_chart(const TimeChart& chart);

// capacity_chart.cpp: something against the capacity of the cache in tokens.
struct CapacityCurve {
  std::string name;
  std::string style;
  Points points;                    // capacities ascending
  std::optional<double> unlimited;  // without a limit of capacity
};
struct CapacityChart {
  std::string heading;
  std::string what;
  std::vector<CapacityCurve> curves;
  TickLabel y_label;
};
std::string capacity_chart(const CapacityChart& chart);

}  // namespace dsv4rt::report
