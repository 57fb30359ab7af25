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

// A tree that is taken apart without memory: the library's own destructor allocates, and ends the process where that
// fails.
class JsonDocument {
 public:
  JsonDocument() = default;
  explicit JsonDocument(nlohmann::json&& root) noexcept : root_(std::move(root)) {}
  JsonDocument(JsonDocument&& other) noexcept : root_(std::move(other.root_)) {}
  JsonDocument& operator=(JsonDocument&& other) noexcept {
    root_.swap(other.root_);
    return *this;
  }
  ~JsonDocument();

  [[nodiscard]] const nlohmann::json& root() const noexcept { return root_; }
  [[nodiscard]] nlohmann::json& root() noexcept { return root_; }

 private:
  nlohmann::json root_;
};

// Parses one JSON object. kBadInput, naming `source` and the place, for a syntax error, a number that
// no double holds, a key given twice in one object, or a document beyond `limits`.
// Throws std::bad_alloc only.
Result<JsonDocument> parse_json_object(std::string_view text, std::string_view source, const JsonLimits& limits = {});

// `value` as an error message shows it: scalars (long strings cut, what a terminal would act on escaped), containers by
// size.
std::string describe_json(const nlohmann::json& value);

}  // namespace dsv4rt
