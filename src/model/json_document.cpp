#include "model/json_document.h"

#include "base/message_text.h"
#include "base/strict_json.h"

namespace dsv4rt {
namespace {

using Json = nlohmann::json;

// First pass over the text: the strict rules, and a limit on the tree that the second pass builds.
class ValueCounter : public JsonVisitor {
 public:
  ValueCounter(std::string_view source, std::size_t max_values) : source_(source), max_values_(max_values) {}

  Status value(const JsonPath&, const JsonValue&) override {
    if (++values_ <= max_values_) return {};
    return {StatusCode::kBadInput,
            std::string(source_) + ": more than " + std::to_string(max_values_) + " values; fewer are accepted"};
  }
  Status end(const JsonPath&, JsonKind) override { return {}; }

 private:
  std::string_view source_;
  std::size_t max_values_;
  std::size_t values_ = 0;
};

Status bad_document(std::string_view source, const std::string& what) {
  return {StatusCode::kBadInput, std::string(source) + ": " + what};
}

}  // namespace

Result<Json> parse_json_object(std::string_view text, std::string_view source, const JsonLimits& limits) {
  if (text.size() > limits.text_bytes) {
    return bad_document(source, "text has " + std::to_string(text.size()) + " bytes; at most " +
                                    std::to_string(limits.text_bytes) + " are accepted");
  }
  ValueCounter counter(source, limits.values);
  if (Status status = parse_strict_json(text, source, limits.depth, counter); !status.ok()) return status;
  Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) {
    return bad_document(source, "top level is " + describe_json(document) + "; a JSON object is accepted");
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
