// The tokens of JSON: strings and numbers, read strictly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/strict_json.h"

namespace dsv4rt {

// A string between its quotes, as written.
struct JsonStringToken {
  std::string_view written;
  bool escaped = false;  // whether the written text differs from what it means
};

// Reads a string at text[at], which is its opening quote, and moves `at` behind the closing one. On failure (a control
// character, bytes that are not UTF-8, an unknown escape, a lone surrogate, no end) `at` is where it lies.
bool read_json_string(std::string_view text, std::size_t& at, JsonStringToken& token);
// What a string that read_json_string accepted means.
void unescape_json_string(std::string_view written, std::string& out);

enum class JsonNumberError : std::uint8_t { kNone, kMalformed, kOutOfRange };
// Reads a number at text[at] and moves `at` behind it.
JsonNumberError read_json_number(std::string_view text, std::size_t& at, JsonValue& value);

}  // namespace dsv4rt
