#include "model/json_document.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace dsv4rt {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxShownCharacters = 60;

std::string shorten(const std::string& text) {
  if (text.size() <= kMaxShownCharacters) return text;
  return text.substr(0, kMaxShownCharacters) + "...";
}

// First pass over the text: enforces the limits before a document tree is built. The parser itself
// does not recurse, so the depth limit is what keeps every later walk of the tree shallow.
class LimitChecker : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return count_value(); }
  bool boolean(bool) override { return count_value(); }
  bool number_integer(std::int64_t) override { return count_value(); }
  bool number_unsigned(std::uint64_t) override { return count_value(); }
  bool number_float(double, const std::string&) override { return count_value(); }
  bool string(std::string&) override { return count_value(); }
  bool binary(Json::binary_t&) override { return count_value(); }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    Level& level = levels_.back();
    level.current_key = name;
    if (level.keys.insert(name).second) return true;
    return fail("key " + path() + " is given twice; each key is accepted once");
  }

  bool parse_error(std::size_t position, const std::string& last_token, const Json::exception& error) override {
    const std::string place = path().empty() ? std::string() : " near key " + path();
    // 406 is the library's number for a numeral outside the range of double.
    if (error.id == 406) {
      return fail("number " + shorten(last_token) + place + " is too large; finite numbers are accepted");
    }
    return fail("not valid JSON at byte " + std::to_string(position) + place + " (" + shorten(last_token) +
                "); a JSON object is accepted");
  }

  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  struct Level {
    std::set<std::string> keys;
    std::string current_key;
  };

  bool fail(std::string message) {
    error_ = std::move(message);
    return false;
  }

  bool count_value() {
    if (++values_ <= kMaxJsonValues) return true;
    return fail("more than " + std::to_string(kMaxJsonValues) + " values; fewer are accepted");
  }

  bool open() {
    if (levels_.size() == kMaxJsonDepth) {
      return fail("nested deeper than the " + std::to_string(kMaxJsonDepth) + " levels that are accepted");
    }
    levels_.emplace_back();
    return count_value();
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  [[nodiscard]] std::string path() const {
    std::string joined;
    for (const Level& level : levels_) {
      if (level.current_key.empty()) continue;
      if (!joined.empty()) joined += '.';
      joined += shorten(level.current_key);
    }
    return joined;
  }

  std::vector<Level> levels_;
  std::size_t values_ = 0;
  std::string error_;
};

Status bad_document(std::string_view source, const std::string& what) {
  return {StatusCode::kBadInput, std::string(source) + ": " + what};
}

}  // namespace

Result<Json> parse_json_object(std::string_view text, std::string_view source) {
  if (text.size() > kMaxJsonTextBytes) {
    return bad_document(source, "text has " + std::to_string(text.size()) + " bytes; at most " +
                                    std::to_string(kMaxJsonTextBytes) + " are accepted");
  }
  LimitChecker checker;
  if (!Json::sax_parse(text, &checker)) return bad_document(source, checker.error());
  Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) {
    return bad_document(source, "top level is " + describe_json(document) + "; a JSON object is accepted");
  }
  return document;
}

std::string describe_json(const Json& value) {
  if (value.is_array()) return "an array of " + std::to_string(value.size()) + " values";
  if (value.is_object()) return "an object of " + std::to_string(value.size()) + " keys";
  if (value.is_string()) return '"' + shorten(value.get_ref<const std::string&>()) + '"';
  return value.dump();
}

}  // namespace dsv4rt
