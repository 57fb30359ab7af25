// One SVG plot: axes, grid, lines and areas. Charts are made of it; what they mean is theirs.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/axis.h"

namespace dsv4rt::report {

// Pixels of the drawing, which pages scale as a whole.
struct PlotArea {
  static constexpr double kWidth = 520;
  static constexpr double kHeight = 232;
  static constexpr double kLeft = 58;
  static constexpr double kRight = 506;
  static constexpr double kTop = 24;  // names of marked values stand above
  static constexpr double kBottom = 188;

  static AxisLine across() { return {kLeft, kRight, false}; }
  static AxisLine upright() { return {kBottom, kTop, true}; }
};

using Points = std::vector<std::pair<double, double>>;  // (x, y) as values, x ascending

class Plot {
 public:
  // `x_title` stands below the ticks of x; `about` is what people hear who do not see the plot.
  Plot(Axis x, Axis y, std::string_view x_title, std::string_view about);

  // Classes of the page's style: "c1" to "c5" are colours, "dashed" and "thin" kinds of line.
  void line(const Points& points, std::string_view style);
  // Between `lower` and `upper`, which have the same x.
  void area(const Points& lower, const Points& upper, std::string_view style);
  void dots(const Points& points, std::string_view style);
  // An upright line at x with its name above, or a level one at y with its name on it.
  void mark_x(double x, std::string_view name);
  void mark_y(double y, std::string_view name);

  [[nodiscard]] std::string svg() const;

 private:
  void text(double x, double y, std::string_view anchor, std::string_view style, std::string_view words);

  Axis x_;
  Axis y_;
  std::string about_;
  std::string body_;
  double names_end_px_ = 0;  // end of the last name that mark_x wrote: names do not touch
};

}  // namespace dsv4rt::report
