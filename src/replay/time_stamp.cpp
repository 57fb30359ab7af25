#include "replay/time_stamp.h"

#include <chrono>

namespace dsv4rt::replay {
namespace {

// Reads fixed-width fields from the front of a text.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : rest_(text) {}

  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }

  int digits(std::size_t count) {
    int value = 0;
    if (rest_.size() < count) ok_ = false;
    for (std::size_t i = 0; ok_ && i < count; ++i) {
      if (rest_[i] < '0' || rest_[i] > '9') ok_ = false;
      value = value * 10 + (rest_[i] - '0');
    }
    if (ok_) rest_.remove_prefix(count);
    return ok_ ? value : 0;
  }

  void expect(char c) { ok_ = accept(c) && ok_; }
  bool accept(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  // Up to nine digits of a second, in ticks.
  Ticks fraction() {
    Ticks ticks = 0;
    Ticks digit_ticks = kTicksPerMs * 100;
    int count = 0;
    while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9') {
      ticks += digit_ticks * (rest_.front() - '0');
      digit_ticks /= 10;
      ++count;
      rest_.remove_prefix(1);
    }
    if (count < 1 || count > 9) ok_ = false;
    return ticks;
  }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

constexpr Ticks kTicksPerSecond = kTicksPerMs * 1000;

}  // namespace

std::optional<Ticks> parse_time_stamp(std::string_view text) noexcept {
  Cursor cursor(text);
  const int year = cursor.digits(4);
  cursor.expect('-');
  const int month = cursor.digits(2);
  cursor.expect('-');
  const int day = cursor.digits(2);
  if (!cursor.accept('T')) cursor.expect(' ');
  const int hour = cursor.digits(2);
  cursor.expect(':');
  const int minute = cursor.digits(2);
  cursor.expect(':');
  const int second = cursor.digits(2);
  const Ticks fraction = cursor.accept('.') ? cursor.fraction() : 0;
  int offset_minutes = 0;
  if (!cursor.accept('Z') && !cursor.at_end()) {
    const bool behind = cursor.accept('-');
    if (!behind) cursor.expect('+');
    offset_minutes = cursor.digits(2) * 60;
    cursor.expect(':');
    offset_minutes += cursor.digits(2);
    if (offset_minutes > 24 * 60) return {};
    if (behind) offset_minutes = -offset_minutes;
  }
  if (!cursor.ok() || !cursor.at_end() || hour > 23 || minute > 59 || second > 60) return {};
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return {};
  const Ticks days = std::chrono::sys_days(date).time_since_epoch().count();
  const Ticks minutes = (days * 24 + hour) * 60 + minute - offset_minutes;
  return (minutes * 60 + second) * kTicksPerSecond + fraction;
}

}  // namespace dsv4rt::replay
