#include "replay/step_table.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/input_file.h"
#include "base/message_text.h"
#include "base/try.h"
#include "model/json_document.h"

namespace dsv4rt::replay {
namespace {

using Json = nlohmann::json;
constexpr std::string_view kFormat = "dsv4rt-step-table";
constexpr std::int64_t kVersion = 1;
constexpr std::size_t kMaxPoints = 100'000;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;
constexpr double kMostMicroseconds = 1e12;

Status bad(std::string_view source, const std::string& field, const std::string& value, const std::string& accepted) {
  return {StatusCode::kBadInput, shown(source) + ": " + field + " = " + value + "; accepted: " + accepted};
}

Status missing(std::string_view source, const std::string& field, const std::string& accepted) {
  return {StatusCode::kBadInput, shown(source) + ": " + field + " is missing; accepted: " + accepted};
}

Result<std::int64_t> read_integer(const Json& object, const std::string& name, const std::string& field,
                                  std::int64_t least, std::string_view source) {
  const std::string accepted = "an integer from " + std::to_string(least) + " to " + std::to_string(kMostTokens);
  const auto found = object.find(name);
  if (found == object.end()) return missing(source, field, accepted);
  const bool fits = found->is_number_unsigned() ? found->get<std::uint64_t>() <= kMostTokens : false;
  if (!fits || found->get<std::int64_t>() < least) return bad(source, field, describe_json(*found), accepted);
  return found->get<std::int64_t>();
}

Result<StepPoint> read_point(const Json& json, const std::string& field, std::string_view source) {
  if (!json.is_object()) return bad(source, field, describe_json(json), "an object");
  for (const auto& [key, value] : json.items()) {
    if (key != "kind" && key != "sequences" && key != "context" && key != "tokens" && key != "microseconds") {
      return bad(source, field + "." + printable(key), describe_json(value),
                 "the keys kind, sequences, context, tokens, microseconds");
    }
  }
  StepPoint point;
  const auto kind = json.find("kind");
  if (kind == json.end()) return missing(source, field + ".kind", "\"decode\" or \"prefill\"");
  if (*kind != "decode" && *kind != "prefill") {
    return bad(source, field + ".kind", describe_json(*kind), "\"decode\" or \"prefill\"");
  }
  point.kind = *kind == "decode" ? StepKind::kDecode : StepKind::kPrefill;
  DSV4RT_ASSIGN_OR_RETURN(point.sequences, read_integer(json, "sequences", field + ".sequences", 1, source));
  DSV4RT_ASSIGN_OR_RETURN(point.context_tokens, read_integer(json, "context", field + ".context", 0, source));
  DSV4RT_ASSIGN_OR_RETURN(point.tokens, read_integer(json, "tokens", field + ".tokens", 1, source));
  const std::string accepted = "a number above 0, up to 1e12";
  const auto time = json.find("microseconds");
  if (time == json.end()) return missing(source, field + ".microseconds", accepted);
  if (!time->is_number()) return bad(source, field + ".microseconds", describe_json(*time), accepted);
  point.microseconds = time->get<double>();
  return point;
}

std::string point_field(std::size_t index) {
  return "points[" + std::to_string(index) + "]";
}

}  // namespace

Result<StepTable> StepTable::from_file(const std::filesystem::path& path) {
  DSV4RT_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxJsonTextBytes));
  return from_json(text, path.native());
}

Result<StepTable> StepTable::from_json(std::string_view text, std::string_view source) {
  DSV4RT_ASSIGN_OR_RETURN(const JsonDocument document, parse_json_object(text, source));
  const Json& json = document.root();
  const auto format = json.find("format");
  if (format == json.end()) return missing(source, "format", quote(kFormat));
  if (*format != kFormat) return bad(source, "format", describe_json(*format), quote(kFormat));
  const auto version = json.find("version");
  if (version == json.end()) return missing(source, "version", std::to_string(kVersion));
  if (!version->is_number_integer() || *version != kVersion) {
    return bad(source, "version", describe_json(*version), std::to_string(kVersion));
  }
  StepTable table;
  const auto provenance = json.find("provenance");
  if (provenance == json.end()) return missing(source, "provenance", "an object of texts");
  if (!provenance->is_object()) return bad(source, "provenance", describe_json(*provenance), "an object of texts");
  for (const auto& [key, value] : provenance->items()) {
    if (!value.is_string()) return bad(source, "provenance." + printable(key), describe_json(value), "a text");
    table.provenance.emplace_back(key, value.get<std::string>());
  }
  const auto points = json.find("points");
  if (points == json.end()) return missing(source, "points", "an array of objects");
  if (!points->is_array() || points->size() > kMaxPoints) {
    return bad(source, "points", describe_json(*points), "an array of up to " + std::to_string(kMaxPoints));
  }
  for (std::size_t i = 0; i < points->size(); ++i) {
    DSV4RT_ASSIGN_OR_RETURN(const StepPoint point, read_point((*points)[i], point_field(i), source));
    table.points.push_back(point);
  }
  DSV4RT_RETURN_IF_ERROR(table.validate(source));
  return table;
}

Status StepTable::validate(std::string_view source) const {
  const bool device = std::any_of(provenance.begin(), provenance.end(),
                                  [](const auto& entry) { return entry.first == "device" && !entry.second.empty(); });
  if (!device) return missing(source, "provenance.device", "a text that names the machine");
  std::set<std::tuple<StepKind, std::int64_t, std::int64_t, std::int64_t>> shapes;
  bool decode = false;
  bool prefill = false;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const StepPoint& point = points[i];
    if (!(point.microseconds > 0 && point.microseconds <= kMostMicroseconds)) {
      return bad(source, point_field(i) + ".microseconds", std::to_string(point.microseconds),
                 "a number above 0, up to 1e12");
    }
    if (!shapes.insert({point.kind, point.sequences, point.context_tokens, point.tokens}).second) {
      return {StatusCode::kBadInput,
              shown(source) + ": " + point_field(i) + " has the shape of a point before it; each is given once"};
    }
    decode |= point.kind == StepKind::kDecode && point.tokens == 1;
    prefill |= point.kind == StepKind::kPrefill;
  }
  if (!decode) return missing(source, "points", "at least one of kind \"decode\" with tokens 1");
  if (!prefill) return missing(source, "points", "at least one of kind \"prefill\"");
  return {};
}

std::string StepTable::to_json() const {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["provenance"] = nlohmann::ordered_json::object();
  for (const auto& [name, text] : provenance) json["provenance"][name] = text;
  json["points"] = nlohmann::ordered_json::array();
  for (const StepPoint& point : points) {
    json["points"].push_back({{"kind", point.kind == StepKind::kDecode ? "decode" : "prefill"},
                              {"sequences", point.sequences},
                              {"context", point.context_tokens},
                              {"tokens", point.tokens},
                              {"microseconds", point.microseconds}});
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace dsv4rt::replay
