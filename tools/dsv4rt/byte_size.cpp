#include "byte_size.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/message_text.h"

namespace dsv4rt::cli {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 10> kUnits{{{"", 1},
                                       {"B", 1},
                                       {"KB", 1e3},
                                       {"MB", 1e6},
                                       {"GB", 1e9},
                                       {"TB", 1e12},
                                       {"KiB", 1024.0},
                                       {"MiB", 1024.0 * 1024},
                                       {"GiB", 1024.0 * 1024 * 1024},
                                       {"TiB", 1024.0 * 1024 * 1024 * 1024}}};
constexpr double kMaxBytes = 9e18;  // below 2^63

}  // namespace

Result<std::int64_t> parse_byte_size(const std::string& flag, const std::string& text) {
  const Status error{StatusCode::kInvalidArgument,
                     flag + ": '" + printable(text) +
                         "'; accepted: a positive number with an optional unit B, KB, MB, GB, TB, "
                         "KiB, MiB, GiB or TiB"};
  double number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (parsed.ec != std::errc{} || !(number > 0)) return error;
  std::string_view unit(parsed.ptr, static_cast<std::size_t>(text.data() + text.size() - parsed.ptr));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const Unit& candidate : kUnits) {
    if (candidate.name != unit) continue;
    const double bytes = number * candidate.bytes;
    if (!(bytes < kMaxBytes) || bytes < 1.0) return error;
    return static_cast<std::int64_t>(std::llround(bytes));
  }
  return error;
}

Result<std::int64_t> parse_token_count(const std::string& flag, const std::string& text) {
  if (text == "inf") return std::numeric_limits<std::int64_t>::max();
  const Status error{
      StatusCode::kInvalidArgument,
      flag + ": '" + printable(text) + "'; accepted: inf, or a positive number with an optional K, M, G, Ki, Mi or Gi"};
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (parsed.ec != std::errc{} || !(number > 0)) return error;
  std::string unit(parsed.ptr, end);
  if (!unit.empty()) unit += 'B';  // "M" counts as "MB" does
  for (const Unit& candidate : kUnits) {
    if (candidate.name != unit) continue;
    const double tokens = number * candidate.bytes;
    if (!(tokens < kMaxBytes) || tokens < 1.0) return error;
    return static_cast<std::int64_t>(std::llround(tokens));
  }
  return error;
}

Result<LayerRange> parse_layer_range(const std::string& flag, const std::string& text) {
  const Status error{StatusCode::kInvalidArgument,
                     flag + ": '" + printable(text) + "'; accepted: N or A-B with A <= B"};
  LayerRange range;
  const char* end = text.data() + text.size();
  auto parsed = std::from_chars(text.data(), end, range.first);
  if (parsed.ec != std::errc{} || range.first < 0) return error;
  range.last = range.first;
  if (parsed.ptr != end) {
    if (*parsed.ptr != '-') return error;
    parsed = std::from_chars(parsed.ptr + 1, end, range.last);
    if (parsed.ec != std::errc{} || parsed.ptr != end || range.last < range.first) return error;
  }
  return range;
}

}  // namespace dsv4rt::cli
