#include "report/plot.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "report/markup.h"

namespace dsv4rt::report {
namespace {

// A pixel, to a tenth.
std::string px(double value) {
  std::array<char, 40> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), "%.1f", value);
  return {buffer.data(), static_cast<std::size_t>(length)};
}

std::string segment(double x1, double y1, double x2, double y2, std::string_view style) {
  return "<line class=\"" + std::string(style) + "\" x1=\"" + px(x1) + "\" y1=\"" + px(y1) + "\" x2=\"" + px(x2) +
         "\" y2=\"" + px(y2) + "\"/>";
}

}  // namespace

Plot::Plot(Axis x, Axis y, std::string_view x_title, std::string_view about)
    : x_(std::move(x)), y_(std::move(y)), about_(about) {
  for (const Tick& tick : y_.ticks()) {
    body_ += segment(PlotArea::kLeft, tick.at_px, PlotArea::kRight, tick.at_px, "grid");
    text(PlotArea::kLeft - 7, tick.at_px + 4, "end", "tick", tick.label);
  }
  for (const Tick& tick : x_.ticks()) {
    body_ += segment(tick.at_px, PlotArea::kTop, tick.at_px, PlotArea::kBottom, "grid");
    // A label at the very end of the axis stays inside the drawing.
    const double half = text_width_px(tick.label, kLabelFontPx) / 2;
    text(std::min(tick.at_px, PlotArea::kWidth - half - 1), PlotArea::kBottom + 17, "middle", "tick", tick.label);
  }
  body_ += segment(PlotArea::kLeft, PlotArea::kBottom, PlotArea::kRight, PlotArea::kBottom, "axis");
  if (!x_title.empty())
    text((PlotArea::kLeft + PlotArea::kRight) / 2, PlotArea::kBottom + 37, "middle", "title", x_title);
}

void Plot::text(double x, double y, std::string_view anchor, std::string_view style, std::string_view words) {
  body_ += "<text class=\"" + std::string(style) + "\" x=\"" + px(x) + "\" y=\"" + px(y) + "\" text-anchor=\"" +
           std::string(anchor) + "\">" + escaped(words) + "</text>";
}

void Plot::line(const Points& points, std::string_view style) {
  if (points.empty()) return;
  body_ += "<polyline class=\"line " + std::string(style) + "\" points=\"";
  for (const auto& [x, y] : points) body_ += px(x_.position(x)) + "," + px(y_.position(y)) + " ";
  body_.back() = '"';
  body_ += "/>";
}

void Plot::area(const Points& lower, const Points& upper, std::string_view style) {
  if (upper.empty()) return;
  body_ += "<polygon class=\"area " + std::string(style) + "\" points=\"";
  for (const auto& [x, y] : upper) body_ += px(x_.position(x)) + "," + px(y_.position(y)) + " ";
  for (auto at = lower.rbegin(); at != lower.rend(); ++at) {
    body_ += px(x_.position(at->first)) + "," + px(y_.position(at->second)) + " ";
  }
  body_.back() = '"';
  body_ += "/>";
}

void Plot::dots(const Points& points, std::string_view style) {
  for (const auto& [x, y] : points) {
    body_ += "<circle class=\"dot " + std::string(style) + "\" cx=\"" + px(x_.position(x)) + "\" cy=\"" +
             px(y_.position(y)) + "\" r=\"3.5\"/>";
  }
}

void Plot::mark_x(double x, std::string_view name) {
  const double at = x_.position(x);
  body_ += segment(at, PlotArea::kTop, at, PlotArea::kBottom, "mark");
  const double half = text_width_px(name, kLabelFontPx) / 2;
  const double middle = std::clamp(at, PlotArea::kLeft + half, PlotArea::kRight - half);
  if (middle - half < names_end_px_) return;  // the line stands alone rather than under two names
  names_end_px_ = middle + half + 8;
  text(middle, PlotArea::kTop - 9, "middle", "name", name);
}

void Plot::mark_y(double y, std::string_view name) {
  const double at = y_.position(y);
  body_ += segment(PlotArea::kLeft, at, PlotArea::kRight, at, "mark");
  if (!name.empty()) text(PlotArea::kRight - 4, at < PlotArea::kTop + 16 ? at + 14 : at - 5, "end", "name", name);
}

std::string Plot::svg() const {
  return "<svg viewBox=\"0 0 " + px(PlotArea::kWidth) + " " + px(PlotArea::kHeight) + "\" role=\"img\" aria-label=\"" +
         escaped(about_) + "\">" + body_ + "</svg>";
}

}  // namespace dsv4rt::report
