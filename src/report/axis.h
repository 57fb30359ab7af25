// Axes: where a value lies, and at which round values there are ticks. Labels never touch: an axis takes the most ticks
// whose labels have room.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace dsv4rt::report {

inline constexpr double kLabelFontPx = 11;

struct Tick {
  double value = 0;
  double at_px = 0;
  std::string label;
};

// Where an axis lies: from the pixel of its least value to that of its greatest (below it for an upright axis).
struct AxisLine {
  double from_px = 0;
  double to_px = 0;
  bool upright = false;
};

// `value` is to be told from values that are `step` away.
using TickLabel = std::function<std::string(double value, double step)>;

// "1.5M": powers of 1000 as suffixes, as few digits as the step needs.
std::string short_number(double value, double step);
// "200 ms", "3 s" for milliseconds.
std::string short_ms(double value, double step);
std::string percent(double share, double step);

class Axis {
 public:
  // From `low` to `high`, or to the first tick that is not below it. `high` at or below `low` counts as low + 1.
  static Axis linear(double low, double high, const AxisLine& line, bool to_tick, const TickLabel& label);
  // Ticks at 1, 2 and 5 times powers of ten, or fewer. 0 < low < high.
  static Axis logarithmic(double low, double high, const AxisLine& line, const TickLabel& label);

  // Values beyond the ends lie at the ends.
  [[nodiscard]] double position(double value) const;
  [[nodiscard]] double low() const noexcept { return low_; }
  [[nodiscard]] double high() const noexcept { return high_; }
  [[nodiscard]] const AxisLine& line() const noexcept { return line_; }
  [[nodiscard]] const std::vector<Tick>& ticks() const noexcept { return ticks_; }

 private:
  Axis(double low, double high, const AxisLine& line, bool is_log)
      : low_(low), high_(high), line_(line), is_log_(is_log) {}
  void set_ticks(const std::vector<double>& values, double step, const TickLabel& label);
  [[nodiscard]] bool labels_have_room() const;

  double low_;
  double high_;
  AxisLine line_;
  bool is_log_;
  std::vector<Tick> ticks_;
};

}  // namespace dsv4rt::report
