// JSON as text, without a tree: the destructor of nlohmann's trees allocates, and ends the process where memory does.
#pragma once

#include <cassert>
#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace dsv4rt {

// Members in the order in which they are added. Names and texts are the program's own: nothing in them needs escapes.
// Only what std::string throws (std::bad_alloc).
class JsonTextWriter {
 public:
  void open_object(std::string_view name = {}) { open(name, '{'); }
  void open_array(std::string_view name) { open(name, '['); }
  void close_object() { text_ += '}'; }
  void close_array() { text_ += ']'; }

  void add(std::string_view name, std::string_view value) {
    assert(value.find_first_of("\"\\") == std::string_view::npos);
    begin(name);
    text_.append(1, '"').append(value).append(1, '"');
  }
  void add(std::string_view name, const char* value) { add(name, std::string_view(value)); }
  void add(std::string_view name, bool value) {
    begin(name);
    text_ += value ? "true" : "false";
  }
  // In the fewest digits that read back as the same value; finite.
  template <class Number>
  requires std::integral<Number> || std::floating_point<Number>
  void add(std::string_view name, Number value) {
    begin(name);
    char digits[32];
    text_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }

  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  void open(std::string_view name, char bracket) {
    begin(name);
    text_ += bracket;
  }
  void begin(std::string_view name) {
    if (!text_.empty() && text_.back() != '{' && text_.back() != '[') text_ += ',';
    if (!name.empty()) text_.append(1, '"').append(name).append("\":");
  }

  std::string text_;
};

}  // namespace dsv4rt
