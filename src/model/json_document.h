// JSON text from outside, parsed within fixed limits.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "dsv4rt/status.h"

namespace dsv4rt {

inline constexpr std::size_t kMaxJsonTextBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxJsonDepth = 64;
inline constexpr std::size_t kMaxJsonValues = std::size_t{1} << 20;

// What a document may be; the defaults are for configs.
struct JsonLimits {
  std::size_t text_bytes = kMaxJsonTextBytes;
  std::size_t depth = kMaxJsonDepth;
  std::size_t values = kMaxJsonValues;
};

// Parses one JSON object. kBadInput, naming `source` and the place, for a syntax error, a number that
// no double holds, a key given twice in one object, or a document beyond `limits`.
// Throws std::bad_alloc only.
Result<nlohmann::json> parse_json_object(std::string_view text, std::string_view source, const JsonLimits& limits = {});

// `value` as an error message shows it: scalars verbatim (long strings cut), containers by size.
std::string describe_json(const nlohmann::json& value);

}  // namespace dsv4rt
