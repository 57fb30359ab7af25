// Typed access to the fields of one JSON object of a log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "dsv4rt/status.h"
#include "model/json_document.h"
#include "replay/record_errors.h"
#include "replay/record_parser.h"

namespace dsv4rt::replay {

// Bounds of every length and time in a log.
inline constexpr std::int64_t kMaxTokens = 1'000'000'000;
inline constexpr double kMaxTimeMs = 1e13;  // about 300 years
// The unit of logs that count seconds.
inline constexpr double kMsPerSecond = 1000;

// Parses a record as one JSON object; nesting, size and number of values are bounded, a repeated key is refused.
Result<JsonDocument> parse_json_record(std::string_view record, RecordErrors& errors);

// Checks a time of `value` units of `unit_ms` milliseconds each. `field` and `text` are for the message.
Result<Ticks> checked_ticks(double value, double unit_ms, std::string_view field, const std::string& text,
                            RecordErrors& errors);

// Refusals name the field, with `prefix` before it ("requests[3].").
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, RecordErrors& errors, std::string prefix = "")
      : object_(object), errors_(errors), prefix_(std::move(prefix)) {}

  [[nodiscard]] bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  // An integer of 0 to kMaxTokens.
  Result<std::int64_t> tokens(const char* key) const;
  // A finite number, in units of `unit_ms` milliseconds; `time` may be negative, `duration` may not.
  Result<Ticks> time(const char* key, double unit_ms) const;
  Result<double> duration_ms(const char* key, double unit_ms) const;
  // An integer from `least` to `most`.
  Result<std::int64_t> integer(const char* key, std::int64_t least, std::int64_t most) const;
  // Text, or an integer as text: ids come as both.
  Result<std::string> name(const char* key) const;
  // An array of integers of 0 to 2^64-1.
  Result<std::vector<std::uint64_t>> ids(const char* key) const;
  // An array; its elements are the caller's to check.
  Result<const nlohmann::json*> array(const char* key) const;
  // An object.
  Result<const nlohmann::json*> object(const char* key) const;

  [[nodiscard]] std::string field(const char* key) const { return prefix_ + key; }
  [[nodiscard]] RecordErrors& errors() const { return errors_; }

 private:
  Result<const nlohmann::json*> find(const char* key, const char* accepted) const;
  Result<double> number(const char* key) const;

  const nlohmann::json& object_;
  RecordErrors& errors_;
  std::string prefix_;
};

}  // namespace dsv4rt::replay
