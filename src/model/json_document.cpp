#include "model/json_document.h"

#include <cstdint>
#include <vector>

#include "base/message_text.h"
#include "base/strict_json.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

using Json = nlohmann::json;

// Children before parents, so that the library's destructor meets only scalars and empty containers, for which it takes
// no memory. The depth is bounded by the limits that the tree was read with.
void take_apart(Json& value) noexcept {
  if (auto* const object = value.get_ptr<Json::object_t*>()) {
    for (auto& [key, child] : *object) take_apart(child);
    object->clear();
  } else if (auto* const array = value.get_ptr<Json::array_t*>()) {
    for (Json& child : *array) take_apart(child);
    array->clear();
  }
}

// Builds the tree from events, and counts its values.
class TreeBuilder : public JsonVisitor {
 public:
  TreeBuilder(std::string_view source, const JsonLimits& limits) : source_(source), limits_(limits) {}

  JsonDocument take() { return std::move(document_); }

  Status value(const JsonPath& path, const JsonValue& value) override {
    if (++values_ > limits_.values) {
      return {StatusCode::kBadInput,
              shown(source_) + ": more than " + std::to_string(limits_.values) + " values; fewer are accepted"};
    }
    Json& place = make_place(path);
    set(place, value);
    if (value.kind == JsonKind::kObject || value.kind == JsonKind::kArray) open_.push_back(&place);
    return {};
  }

  Status end(const JsonPath&, JsonKind) override {
    open_.pop_back();
    return {};
  }

 private:
  Json& make_place(const JsonPath& path) {
    if (path.empty()) return document_.root();
    Json& parent = *open_.back();
    if (path.back().array) return parent.get_ref<Json::array_t&>().emplace_back();
    return parent.get_ref<Json::object_t&>()[path.back().key];
  }

  // Only scalars and empty containers are ever copied or destroyed here.
  static void set(Json& place, const JsonValue& value) {
    switch (value.kind) {
      case JsonKind::kNull:
        return;
      case JsonKind::kBoolean:
        place = value.number != 0;
        return;
      case JsonKind::kUnsigned:
        place = value.number;
        return;
      case JsonKind::kNegative:
        place = static_cast<std::int64_t>(value.number);
        return;
      case JsonKind::kFloat:
        place = value.real;
        return;
      case JsonKind::kString:
        place = std::string(value.text);
        return;
      case JsonKind::kObject:
        place = Json::object();
        return;
      case JsonKind::kArray:
        place = Json::array();
        return;
    }
  }

  std::string_view source_;
  const JsonLimits& limits_;
  std::size_t values_ = 0;
  JsonDocument document_;
  std::vector<Json*> open_;  // objects and arrays that have not ended; their parents do not grow meanwhile
};

Status bad_document(std::string_view source, const std::string& what) {
  return {StatusCode::kBadInput, shown(source) + ": " + what};
}

}  // namespace

JsonDocument::~JsonDocument() {
  take_apart(root_);
}

Result<JsonDocument> parse_json_object(std::string_view text, std::string_view source, const JsonLimits& limits) {
  if (text.size() > limits.text_bytes) {
    return bad_document(source, "text has " + std::to_string(text.size()) + " bytes; at most " +
                                    std::to_string(limits.text_bytes) + " are accepted");
  }
  TreeBuilder builder(source, limits);
  const JsonBounds bounds{
      .depth = limits.depth, .keys = limits.values, .key_bytes = limits.text_bytes, .text_bytes = limits.text_bytes};
  DSV4RT_RETURN_IF_ERROR(parse_strict_json(text, source, bounds, builder));
  JsonDocument document = builder.take();
  if (!document.root().is_object()) {
    return bad_document(source, "top level is " + describe_json(document.root()) + "; a JSON object is accepted");
  }
  return document;
}

std::string describe_json(const Json& value) {
  if (value.is_array()) return "an array of " + std::to_string(value.size()) + " values";
  if (value.is_object()) return "an object of " + std::to_string(value.size()) + " keys";
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  return value.dump();
}

}  // namespace dsv4rt
