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

// Empties a document at the end of a scope, from the leaves up. The destructor of nlohmann::json takes memory for every
// container that still has values, and ends the program when there is none.
class EmptyJsonAtEnd {
 public:
  explicit EmptyJsonAtEnd(nlohmann::json& document) : document_(document) {}
  ~EmptyJsonAtEnd() { empty(document_); }
  EmptyJsonAtEnd(const EmptyJsonAtEnd&) = delete;
  EmptyJsonAtEnd& operator=(const EmptyJsonAtEnd&) = delete;

 private:
  static void empty(nlohmann::json& value) noexcept;  // recurses as deep as documents may be

  nlohmann::json& document_;
};

// `value` as an error message shows it: scalars verbatim (long strings cut), containers by size.
std::string describe_json(const nlohmann::json& value);

}  // namespace dsv4rt
