#include "base/strict_json.h"

#include <new>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/message_text.h"

namespace dsv4rt {
namespace {

// nlohmann::json's event interface; its parser keeps one bit per open level and does not recurse.
class EventAdapter : public nlohmann::json_sax<nlohmann::json> {
 public:
  EventAdapter(std::string_view source, std::size_t max_depth, JsonVisitor& visitor)
      : source_(source), max_depth_(max_depth), visitor_(visitor) {}

  [[nodiscard]] const Status& status() const { return status_; }

  bool null() override { return scalar({JsonKind::kNull, 0, {}}); }
  bool boolean(bool) override { return scalar({JsonKind::kBoolean, 0, {}}); }
  bool number_integer(number_integer_t) override { return scalar({JsonKind::kNegative, 0, {}}); }
  bool number_unsigned(number_unsigned_t number) override { return scalar({JsonKind::kUnsigned, number, {}}); }
  bool number_float(number_float_t, const string_t&) override { return scalar({JsonKind::kFloat, 0, {}}); }
  bool string(string_t& text) override { return scalar({JsonKind::kString, 0, text}); }
  bool binary(binary_t&) override { return fail("binary value in JSON text"); }

  bool start_object(std::size_t) override { return start(JsonKind::kObject); }
  bool start_array(std::size_t) override { return start(JsonKind::kArray); }
  bool end_object() override { return finish(JsonKind::kObject); }
  bool end_array() override { return finish(JsonKind::kArray); }

  bool key(string_t& name) override {
    const bool fresh = keys_.back().insert(name).second;
    path_.back().key = std::move(name);
    return fresh || fail("key " + path_text() + " is given twice; each key is accepted once");
  }

  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::json::exception& error) override {
    constexpr int kNumberOutOfRange = 406;  // the library's number for a numeral that no double holds
    const std::string place = path_text().empty() ? std::string() : " near key " + path_text();
    if (error.id == kNumberOutOfRange) {
      return fail("number " + quote(last_token) + place + " is not valid JSON here: finite numbers are accepted");
    }
    return fail("not valid JSON at byte " + std::to_string(position) + place);
  }

 private:
  bool fail(const std::string& reason) {
    status_ = {StatusCode::kBadInput, std::string(source_) + ": " + reason};
    return false;
  }

  bool accept(Status status) {
    status_ = std::move(status);
    return status_.ok();
  }

  // The open keys, outermost first: "rope_scaling.factor".
  [[nodiscard]] std::string path_text() const {
    std::string text;
    for (const JsonLevel& level : path_) {
      if (level.key.empty()) continue;
      if (!text.empty()) text += '.';
      text += printable(level.key);
    }
    return text;
  }

  // After a complete value: the next element of an enclosing array.
  void advance() {
    if (!path_.empty() && path_.back().array) ++path_.back().index;
  }

  bool scalar(const JsonValue& value) {
    if (!accept(visitor_.value(path_, value))) return false;
    advance();
    return true;
  }

  bool start(JsonKind kind) {
    if (path_.size() >= max_depth_) {
      return fail("JSON nested deeper than the " + std::to_string(max_depth_) + " levels that are accepted");
    }
    if (!accept(visitor_.value(path_, {kind, 0, {}}))) return false;
    path_.push_back({kind == JsonKind::kArray, {}, 0});
    keys_.emplace_back();
    return true;
  }

  bool finish(JsonKind kind) {
    path_.pop_back();
    keys_.pop_back();
    if (!accept(visitor_.end(path_, kind))) return false;
    advance();
    return true;
  }

  std::string_view source_;
  std::size_t max_depth_;
  JsonVisitor& visitor_;
  Status status_;
  JsonPath path_;
  std::vector<std::set<std::string>> keys_;  // seen so far, per open level
};

}  // namespace

std::string_view json_kind_name(JsonKind kind) noexcept {
  switch (kind) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kBoolean:
      return "a boolean";
    case JsonKind::kUnsigned:
      return "a non-negative integer";
    case JsonKind::kNegative:
      return "a negative integer";
    case JsonKind::kFloat:
      return "a number that is not an integer of 64 bits";
    case JsonKind::kString:
      return "a string";
    case JsonKind::kObject:
      return "an object";
    case JsonKind::kArray:
      return "an array";
  }
  return "a value";
}

Status parse_strict_json(std::string_view text, std::string_view source, std::size_t max_depth, JsonVisitor& visitor) {
  // The parser takes a NUL for the end of the text and would ignore what follows it.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    return {StatusCode::kBadInput, std::string(source) + ": not valid JSON: NUL byte at byte " + std::to_string(nul)};
  }
  try {
    EventAdapter adapter(source, max_depth, visitor);
    const bool parsed = nlohmann::json::sax_parse(text.begin(), text.end(), &adapter);
    if (!parsed && adapter.status().ok()) {
      return {StatusCode::kBadInput, std::string(source) + ": not valid JSON"};
    }
    return adapter.status();
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, std::string(source) + ": out of memory while reading JSON"};
  } catch (const nlohmann::json::exception&) {
    return {StatusCode::kBadInput, std::string(source) + ": not valid JSON"};
  }
}

}  // namespace dsv4rt
