// A saved report as it is read: JSON from a file that anybody may have written. Every question names the field that it
// asks for; a field that is missing or of another kind is an error with its path, never a default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/message_text.h"
#include "dsv4rt/status.h"

namespace dsv4rt::report {

using Document = nlohmann::ordered_json;

// Thrown by Field and caught where a whole document is read (read_document).
class DocumentError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value in a document and its JSON pointer, whose keys are escaped for messages. The document outlives it.
class Field {
 public:
  // More elements than any report has are refused, so that a page stays of bounded size.
  static constexpr std::size_t kMostElements = 4096;

  explicit Field(const Document& document) : value_(&document) {}

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] Field operator[](std::string_view key) const;  // the object has it
  [[nodiscard]] Field operator[](std::size_t index) const;     // the array is long enough
  // Unset where the key is missing or null.
  [[nodiscard]] std::optional<Field> find(std::string_view key) const;
  [[nodiscard]] std::size_t size() const;  // elements of an array
  [[nodiscard]] bool is_text() const noexcept { return value_->is_string(); }
  [[nodiscard]] double number() const;
  [[nodiscard]] std::int64_t integer() const;
  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] const Document& object() const;
  // Of any kind, for people: texts as they are, others as JSON.
  [[nodiscard]] std::string shown() const;

 private:
  Field(const Document& value, std::string path) : value_(&value), path_(std::move(path)) {}
  [[noreturn]] void wrong(const char* accepted) const;

  const Document* value_;
  std::string path_;
};

// The document of that text; kBadInput naming `name` where it is none, or is nested deeper or holds more values than
// any report.
Result<Document> parse_document(std::string_view text, std::string_view name);

// Calls read(Field) and makes a Status of what it throws: kBadInput naming `name` and the field.
template <class Read>
auto read_document(const Document& document, std::string_view name, Read read)
    -> Result<decltype(read(Field(document)))> {
  try {
    return read(Field(document));
  } catch (const DocumentError& error) {
    return Status{StatusCode::kBadInput, printable(name, kShownPathBytes) + ": " + error.what()};
  }
}

}  // namespace dsv4rt::report
