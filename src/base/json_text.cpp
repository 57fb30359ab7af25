#include "base/json_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <locale.h>
#include <system_error>

#include "base/utf8.h"

namespace dsv4rt {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The four digits of \uXXXX that begin at `at`, or -1.
std::int32_t unit_at(std::string_view text, std::size_t at) {
  if (text.size() < 4 || at > text.size() - 4) return -1;
  std::int32_t unit = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const int digit = hex_value(text[at + i]);
    if (digit < 0) return -1;
    unit = unit * 16 + digit;
  }
  return unit;
}

bool is_high_surrogate(std::int32_t unit) {
  return unit >= 0xd800 && unit < 0xdc00;
}
bool is_low_surrogate(std::int32_t unit) {
  return unit >= 0xdc00 && unit < 0xe000;
}

// The character of an escape whose backslash is at text[at]; 0 bytes where there is none.
Utf8Character escape_at(std::string_view text, std::size_t at) {
  if (text.size() - at < 2) return {};
  switch (text[at + 1]) {
    case '"':
    case '\\':
    case '/':
      return {static_cast<std::uint32_t>(text[at + 1]), 2};
    case 'b':
      return {'\b', 2};
    case 'f':
      return {'\f', 2};
    case 'n':
      return {'\n', 2};
    case 'r':
      return {'\r', 2};
    case 't':
      return {'\t', 2};
    case 'u':
      break;
    default:
      return {};
  }
  const std::int32_t unit = unit_at(text, at + 2);
  if (unit < 0 || is_low_surrogate(unit)) return {};
  if (!is_high_surrogate(unit)) return {static_cast<std::uint32_t>(unit), 6};
  if (text.substr(at + 6, 2) != "\\u") return {};
  const std::int32_t low = unit_at(text, at + 8);
  if (!is_low_surrogate(low)) return {};
  return {0x10000U + (static_cast<std::uint32_t>(unit - 0xd800) << 10) + static_cast<std::uint32_t>(low - 0xdc00), 12};
}

// Characters that stand for themselves and are one byte long.
constexpr std::array<bool, 256> plain_bytes() {
  std::array<bool, 256> plain{};
  for (std::size_t byte = 0x20; byte < 0x80; ++byte) plain[byte] = byte != '"' && byte != '\\';
  return plain;
}
constexpr std::array<bool, 256> kPlain = plain_bytes();

// For numerals that std::from_chars calls out of range: too large, or too small to differ from 0.
double far_number(std::string_view digits) {
  static const locale_t c_locale = ::newlocale(LC_ALL_MASK, "C", nullptr);
  const std::string text(digits);
  return ::strtod_l(text.c_str(), nullptr, c_locale);
}

}  // namespace

bool read_json_string(std::string_view text, std::size_t& at, JsonStringToken& token) {
  const std::size_t begin = ++at;
  token.escaped = false;
  for (;;) {
    while (at < text.size() && kPlain[static_cast<unsigned char>(text[at])]) ++at;
    if (at == text.size()) return false;
    if (text[at] == '"') break;
    const bool escape = text[at] == '\\';
    if (!escape && static_cast<unsigned char>(text[at]) < 0x20) return false;
    const Utf8Character character = escape ? escape_at(text, at) : utf8_at(text, at);
    if (character.bytes == 0) return false;
    token.escaped |= escape;
    at += character.bytes;
  }
  token.written = text.substr(begin, at - begin);
  ++at;
  return true;
}

void unescape_json_string(std::string_view written, std::string& out) {
  out.clear();
  std::size_t at = 0;
  for (;;) {
    const std::size_t escape = std::min(written.find('\\', at), written.size());
    out.append(written, at, escape - at);
    if (escape == written.size()) return;
    const Utf8Character character = escape_at(written, escape);
    append_utf8(out, character.code);
    at = escape + character.bytes;
  }
}

JsonNumberError read_json_number(std::string_view text, std::size_t& at, JsonValue& value) {
  const std::size_t begin = at;
  const auto digits = [&] {
    const std::size_t first = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return at - first;
  };
  const bool negative = text[at] == '-';
  if (negative) ++at;
  const bool leading_zero = at < text.size() && text[at] == '0';
  if (leading_zero) {
    ++at;
  } else if (digits() == 0) {
    return JsonNumberError::kMalformed;
  }
  bool integer = true;
  if (at < text.size() && text[at] == '.') {
    ++at;
    integer = false;
    if (digits() == 0) return JsonNumberError::kMalformed;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    integer = false;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    if (digits() == 0) return JsonNumberError::kMalformed;
  }
  const char* const first = text.data() + begin;
  const char* const last = text.data() + at;
  if (integer && negative) {
    std::int64_t number = 0;
    if (std::from_chars(first, last, number).ec == std::errc()) {
      value = {JsonKind::kNegative, static_cast<std::uint64_t>(number), 0, {}};
      return JsonNumberError::kNone;
    }
  } else if (integer) {
    std::uint64_t number = 0;
    if (std::from_chars(first, last, number).ec == std::errc()) {
      value = {JsonKind::kUnsigned, number, 0, {}};
      return JsonNumberError::kNone;
    }
  }
  double real = 0;
  if (std::from_chars(first, last, real).ec != std::errc()) real = far_number(text.substr(begin, at - begin));
  value = {JsonKind::kFloat, 0, real, {}};
  return std::isfinite(real) ? JsonNumberError::kNone : JsonNumberError::kOutOfRange;
}

}  // namespace dsv4rt
