#include "replay/json_fields.h"

#include <cmath>
#include <limits>

#include "base/try.h"

namespace dsv4rt::replay {
namespace {

using Json = nlohmann::json;

// A session of 1,000 requests with 100,000-token prompts in 64-token blocks has 1.6 million ids.
constexpr JsonLimits kRecordLimits{.text_bytes = std::size_t{64} << 20, .depth = 64, .values = std::size_t{16} << 20};

}  // namespace

Result<JsonDocument> parse_json_record(std::string_view record, RecordErrors& errors) {
  auto object = parse_json_object(record, errors.place(), kRecordLimits);
  if (!object) return errors.adopt(BadReason::kSyntax, object.status());
  return std::move(*object);
}

Result<Ticks> checked_ticks(double value, double unit_ms, std::string_view field, const std::string& text,
                            RecordErrors& errors) {
  const double ms = value * unit_ms;
  if (!std::isfinite(ms) || std::abs(ms) > kMaxTimeMs) {
    return errors.refuse_field(BadReason::kOutOfRange, field, text, "a finite time of at most 1e13 ms");
  }
  return static_cast<Ticks>(std::llround(ms * static_cast<double>(kTicksPerMs)));
}

Result<const Json*> JsonFields::find(const char* key, const char* accepted) const {
  const auto found = object_.find(key);
  if (found == object_.end()) {
    return errors_.refuse_field(BadReason::kMissingField, field(key), "missing", accepted);
  }
  return &*found;
}

Result<std::int64_t> JsonFields::integer(const char* key, std::int64_t least, std::int64_t most) const {
  const std::string accepted = "an integer of " + std::to_string(least) + " to " + std::to_string(most);
  DSV4RT_ASSIGN_OR_RETURN(const Json* const value, find(key, accepted.c_str()));
  if (!value->is_number_integer()) {
    return errors_.refuse_field(BadReason::kWrongType, field(key), describe_json(*value), accepted);
  }
  const bool huge = value->is_number_unsigned() &&
                    value->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (huge || value->get<std::int64_t>() < least || value->get<std::int64_t>() > most) {
    return errors_.refuse_field(BadReason::kOutOfRange, field(key), describe_json(*value), accepted);
  }
  return value->get<std::int64_t>();
}

Result<std::int64_t> JsonFields::tokens(const char* key) const {
  return integer(key, 0, kMaxTokens);
}

Result<double> JsonFields::number(const char* key) const {
  DSV4RT_ASSIGN_OR_RETURN(const Json* const value, find(key, "a number"));
  if (!value->is_number()) {
    return errors_.refuse_field(BadReason::kWrongType, field(key), describe_json(*value), "a number");
  }
  return value->get<double>();
}

Result<Ticks> JsonFields::time(const char* key, double unit_ms) const {
  DSV4RT_ASSIGN_OR_RETURN(const double value, number(key));
  return checked_ticks(value, unit_ms, field(key), describe_json(object_[key]), errors_);
}

Result<double> JsonFields::duration_ms(const char* key, double unit_ms) const {
  DSV4RT_ASSIGN_OR_RETURN(const Ticks ticks, time(key, unit_ms));
  if (ticks < 0) {
    return errors_.refuse_field(BadReason::kOutOfRange, field(key), describe_json(object_[key]),
                                "a time that is not negative");
  }
  return static_cast<double>(ticks) / static_cast<double>(kTicksPerMs);
}

Result<std::string> JsonFields::name(const char* key) const {
  constexpr std::size_t kMaxNameBytes = 256;
  DSV4RT_ASSIGN_OR_RETURN(const Json* const value, find(key, "text or an integer"));
  if (value->is_number_integer()) return value->dump();
  if (!value->is_string()) {
    return errors_.refuse_field(BadReason::kWrongType, field(key), describe_json(*value), "text or an integer");
  }
  if (value->get_ref<const std::string&>().size() > kMaxNameBytes) {
    return errors_.refuse_field(BadReason::kOutOfRange, field(key), describe_json(*value), "at most 256 bytes");
  }
  return value->get<std::string>();
}

Result<const Json*> JsonFields::array(const char* key) const {
  DSV4RT_ASSIGN_OR_RETURN(const Json* const value, find(key, "an array"));
  if (!value->is_array()) {
    return errors_.refuse_field(BadReason::kWrongType, field(key), describe_json(*value), "an array");
  }
  return value;
}

Result<const Json*> JsonFields::object(const char* key) const {
  DSV4RT_ASSIGN_OR_RETURN(const Json* const value, find(key, "an object"));
  if (!value->is_object()) {
    return errors_.refuse_field(BadReason::kWrongType, field(key), describe_json(*value), "an object");
  }
  return value;
}

Result<std::vector<std::uint64_t>> JsonFields::ids(const char* key) const {
  DSV4RT_ASSIGN_OR_RETURN(const Json* const value, array(key));
  std::vector<std::uint64_t> ids;
  ids.reserve(value->size());
  for (const Json& id : *value) {
    if (!id.is_number_unsigned()) {
      return errors_.refuse_field(id.is_number() ? BadReason::kOutOfRange : BadReason::kWrongType,
                                  field(key) + "[" + std::to_string(ids.size()) + "]", describe_json(id),
                                  "an integer of 0 to 2^64-1");
    }
    ids.push_back(id.get<std::uint64_t>());
  }
  return ids;
}

}  // namespace dsv4rt::replay
