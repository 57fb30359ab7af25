#include "model/json_document.h"

#include <utility>
#include <vector>

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

// Builds the tree in `root`, which its owner empties: nlohmann's own builder leaves that to destructors.
class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit TreeBuilder(Json& root) : root_(root) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool start_object(std::size_t) override { return open(Json::value_t::object); }
  bool start_array(std::size_t) override { return open(Json::value_t::array); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_object()) return (*open_.back())[key_] = std::move(value);
    open_.back()->push_back(std::move(value));
    return open_.back()->back();
  }
  bool open(Json::value_t kind) {
    open_.push_back(&place(Json(kind)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Json& root_;
  std::string key_;
  std::vector<Json*> open_;  // containers, outermost first
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
  Json document;
  const EmptyJsonAtEnd whatever_is_left(document);
  TreeBuilder builder(document);
  Json::sax_parse(text, &builder);  // the first pass has refused what is not valid
  if (!document.is_object()) {
    return bad_document(source, "top level is " + describe_json(document) + "; a JSON object is accepted");
  }
  return document;
}

void EmptyJsonAtEnd::empty(Json& value) noexcept {
  if (value.is_object()) {
    for (auto& [key, member] : value.get_ref<Json::object_t&>()) empty(member);
  } else if (value.is_array()) {
    for (Json& element : value.get_ref<Json::array_t&>()) empty(element);
  } else {
    return;
  }
  value.clear();
}

std::string describe_json(const Json& value) {
  if (value.is_array()) return "an array of " + std::to_string(value.size()) + " values";
  if (value.is_object()) return "an object of " + std::to_string(value.size()) + " keys";
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  return value.dump();
}

}  // namespace dsv4rt
