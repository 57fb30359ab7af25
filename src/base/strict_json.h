// JSON from untrusted files, delivered as events: no tree is built, nesting is bounded, and a key
// that occurs twice in one object is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4rt/status.h"

namespace dsv4rt {

enum class JsonKind : std::uint8_t { kNull, kBoolean, kUnsigned, kNegative, kFloat, kString, kObject, kArray };
// "null", "a boolean", "a number", ... for messages.
std::string_view json_kind_name(JsonKind kind) noexcept;

// Where an event happens: one level for each open object or array, outermost first.
struct JsonLevel {
  bool array = false;
  std::string key;           // objects: the key whose value is being read
  std::uint64_t index = 0;   // arrays: the element being read
  std::string_view written;  // objects: the key as it stands in the text, with its escapes
};
using JsonPath = std::vector<JsonLevel>;

// A scalar, or the start of an object or array (kind only).
struct JsonValue {
  JsonKind kind = JsonKind::kNull;
  std::uint64_t number = 0;  // kUnsigned; kBoolean: 0 or 1; kNegative: its two's complement
  double real = 0;           // kFloat
  std::string_view text;     // kString; valid during the call
};

class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;
  // Called for every value. An empty path means the root. A failure ends the parse and is returned.
  virtual Status value(const JsonPath& path, const JsonValue& value) = 0;
  // An object or array ended; `path` is that of the value() call that began it.
  virtual Status end(const JsonPath& path, JsonKind kind) = 0;
};

// What a text may be. Keys of one object are remembered, 24 bytes for each, to find one that is given twice; a string
// is copied only where it has escapes.
struct JsonBounds {
  std::size_t depth = 64;
  std::size_t keys = std::size_t{1} << 20;         // in one object
  std::size_t key_bytes = std::size_t{1} << 16;    // in one key, as written
  std::size_t text_bytes = std::size_t{64} << 20;  // in one string with escapes, as written
};

// Parses all of `text` (one JSON value, valid UTF-8, nothing after it but white space). `source`
// names the file in messages. Errors: kBadInput for invalid JSON (with its byte position), a
// duplicate key, a NUL byte or anything beyond `bounds`; kResourceExhausted without memory.
Status parse_strict_json(std::string_view text, std::string_view source, const JsonBounds& bounds,
                         JsonVisitor& visitor);

}  // namespace dsv4rt
