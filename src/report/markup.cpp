#include "report/markup.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace dsv4rt::report {
namespace {

// Bytes of the UTF-8 sequence at the beginning of `text`; 0: there is none.
std::size_t sequence_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t bytes = lead < 0x80                   ? 1
                            : lead >= 0xc2 && lead < 0xe0 ? 2
                            : lead >= 0xe0 && lead < 0xf0 ? 3
                            : lead >= 0xf0 && lead < 0xf5 ? 4
                                                          : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return bytes;
}

std::string with_commas(const std::string& digits) {
  const std::size_t begin = digits[0] == '-' ? 1 : 0;
  const std::size_t end = std::min(digits.find('.'), digits.size());
  std::string result;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > begin && i < end && (end - i) % 3 == 0) result += ',';
    result += digits[i];
  }
  return result;
}

std::string span(const Field& field, double scale, const std::string& text) {
  const std::string factor = scale == 1 ? "" : " data-scale=\"" + number_text(scale) + "\"";
  return "<span data-json=\"" + escaped(field.path()) + "\"" + factor + ">" + text + "</span>";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = sequence_bytes(text);
    const char c = text[0];
    if (bytes == 0 || (bytes == 1 && (static_cast<unsigned char>(c) < 0x20 || c == 0x7f))) {
      result += c == '\n' || c == '\t' ? " " : "\xef\xbf\xbd";
      text.remove_prefix(1);
      continue;
    }
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return result;
}

std::string fixed_text(double value, int digits) {
  std::array<char, 400> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value);
  return with_commas(std::string(buffer.data(), static_cast<std::size_t>(length)));
}

std::string count_text(std::int64_t value) {
  return with_commas(std::to_string(value));
}

std::string number_text(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size >= 1e15) {
    std::array<char, 40> buffer{};
    const int length = std::snprintf(buffer.data(), buffer.size(), "%.3g", value);
    return {buffer.data(), static_cast<std::size_t>(length)};
  }
  if (size < 0.001) return fixed_text(value, size < 1e-6 ? 9 : 6);
  const int whole_digits = static_cast<int>(std::floor(std::log10(size))) + 1;
  if (value == std::floor(value) && size < 10000) return fixed_text(value, 0);
  return fixed_text(value, std::clamp(4 - whole_digits, 0, 5));
}

std::string bytes_text(double bytes) {
  static constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fixed_text(bytes, unit == 0 || bytes >= 100 ? 0 : bytes >= 10 ? 1 : 2) + " " + kUnits[unit];
}

std::string shown_count(const Field& field) {
  return span(field, 1, count_text(field.integer()));
}

std::string shown_number(const Field& field, double scale) {
  return span(field, scale, number_text(field.number() * scale));
}

std::string shown_share(const Field& field, int digits) {
  return span(field, 100, fixed_text(field.number() * 100, digits)) + "&nbsp;%";
}

std::string shown_text(const Field& field) {
  return escaped(field.shown());
}

std::string shown_count_or_dash(const Field& object, std::string_view key) {
  const auto field = object.find(key);
  return field ? shown_count(*field) : "-";
}

std::string shown_number_or_dash(const Field& object, std::string_view key) {
  const auto field = object.find(key);
  return field ? shown_number(*field) : "-";
}

double text_width_px(std::string_view text, double font_px) {
  const auto characters =
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
  return 0.66 * font_px * static_cast<double>(characters);
}

}  // namespace dsv4rt::report
