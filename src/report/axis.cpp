#include "report/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "report/markup.h"

namespace dsv4rt::report {
namespace {

constexpr double kUprightGapPx = 26;  // between labels above each other
constexpr double kGapPx = 12;         // between labels side by side

// The least of 1, 2, 5 times a power of ten that is not below `least`.
double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

// Digits after the point that tell multiples of `step` apart.
std::string plain(double value, double step) {
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9);
  std::array<char, 400> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value);
  return {buffer.data(), static_cast<std::size_t>(length)};
}

}  // namespace

std::string short_number(double value, double step) {
  static constexpr std::array<std::pair<double, const char*>, 5> kUnits{
      {{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}};
  if (value == 0) return "0";
  for (const auto& [unit, suffix] : kUnits) {
    // Ticks of 1500 and 2000 are 1.5k and 2k, of 1998 and 2000 themselves.
    if (std::abs(value) >= unit && step >= unit / 100) return plain(value / unit, step / unit) + suffix;
  }
  return plain(value, step);
}

std::string short_ms(double value, double step) {
  if (value == 0) return "0";
  return value >= 1000 ? short_number(value / 1000, step / 1000) + "\xc2\xa0s" : plain(value, step) + "\xc2\xa0ms";
}

std::string percent(double share, double step) {
  return plain(share * 100, step * 100) + "\xc2\xa0%";
}

double Axis::position(double value) const {
  const double within = std::clamp(value, low_, high_);
  const double part = is_log_ ? std::log(within / low_) / std::log(high_ / low_) : (within - low_) / (high_ - low_);
  return line_.from_px + part * (line_.to_px - line_.from_px);
}

void Axis::set_ticks(const std::vector<double>& values, double step, const TickLabel& label) {
  ticks_.clear();
  for (const double value : values) {
    ticks_.push_back({value, position(value), label(value, is_log_ ? value : step)});
  }
}

bool Axis::labels_have_room() const {
  for (std::size_t i = 1; i < ticks_.size(); ++i) {
    const double apart = std::abs(ticks_[i].at_px - ticks_[i - 1].at_px);
    const double half_widths =
        (text_width_px(ticks_[i].label, kLabelFontPx) + text_width_px(ticks_[i - 1].label, kLabelFontPx)) / 2;
    if (apart < (line_.upright ? kUprightGapPx : half_widths + kGapPx)) return false;
  }
  return true;
}

Axis Axis::linear(double low, double high, const AxisLine& line, bool to_tick, const TickLabel& label) {
  if (!(high > low)) high = low + 1;
  for (int most = 10; most >= 1; --most) {
    const double step = round_step((high - low) / most);
    const double first = std::ceil(low / step - 1e-9) + 0.0;  // 0 has no sign
    const double last = to_tick ? std::ceil(high / step - 1e-9) : std::floor(high / step + 1e-9);
    Axis axis(low, to_tick ? std::max(high, last * step) : high, line, false);
    std::vector<double> values;
    for (double i = first; i <= last && values.size() < 20; ++i) values.push_back(i * step);
    axis.set_ticks(values, step, label);
    if (axis.labels_have_room()) return axis;
  }
  return {low, high, line, false};
}

Axis Axis::logarithmic(double low, double high, const AxisLine& line, const TickLabel& label) {
  Axis axis(low, high, line, true);
  const int first = static_cast<int>(std::floor(std::log10(low) + 1e-9));
  const int last = static_cast<int>(std::ceil(std::log10(high) - 1e-9));
  const auto fits = [&](const std::vector<double>& factors, int every) {
    std::vector<double> values;
    for (int power = first; power <= last; ++power) {
      if (power % every != 0) continue;
      for (const double factor : factors) {
        const double value = factor * std::pow(10.0, power);
        if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) values.push_back(value);
      }
    }
    axis.set_ticks(values, 1, label);
    return axis.labels_have_room();
  };
  if (fits({1, 2, 5}, 1)) return axis;
  for (int every = 1; every <= 40; ++every) {
    if (fits({1}, every)) return axis;
  }
  axis.ticks_.clear();
  return axis;
}

}  // namespace dsv4rt::report
