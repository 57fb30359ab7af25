#include "report/document.h"

#include <cmath>
#include <cstdint>

#include "base/message_text.h"

namespace dsv4rt::report {
namespace {

// What a report may hold: many times what the largest has, and no more memory than a few hundred MiB.
constexpr int kMostDepth = 32;
constexpr std::int64_t kMostValues = std::int64_t{1} << 20;

}  // namespace

void Field::wrong(const char* accepted) const {
  throw DocumentError("field " + (path_.empty() ? std::string("/") : path_) + " is " + value_->type_name() +
                      "; accepted: " + accepted);
}

Field Field::operator[](std::string_view key) const {
  if (!value_->is_object()) wrong("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) throw DocumentError("field " + path_ + "/" + printable(key) + " is missing");
  return {*found, path_ + "/" + printable(key)};
}

Field Field::operator[](std::size_t index) const {
  if (index >= size()) throw DocumentError("field " + path_ + "/" + std::to_string(index) + " is missing");
  return {(*value_)[index], path_ + "/" + std::to_string(index)};
}

std::optional<Field> Field::find(std::string_view key) const {
  if (!value_->is_object()) wrong("an object");
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return {};
  return Field(*found, path_ + "/" + printable(key));
}

std::size_t Field::size() const {
  if (!value_->is_array()) wrong("an array");
  if (value_->size() > kMostElements) {
    throw DocumentError("field " + path_ + " has " + std::to_string(value_->size()) + " elements; accepted: up to " +
                        std::to_string(kMostElements));
  }
  return value_->size();
}

double Field::number() const {
  if (!value_->is_number()) wrong("a number");
  const auto number = value_->get<double>();
  // Whatever is drawn or added up stays finite.
  if (!(std::abs(number) <= 1e18)) throw DocumentError("field " + path_ + " is beyond 1e18");
  return number;
}

std::int64_t Field::integer() const {
  if (!value_->is_number_integer()) wrong("a whole number");
  (void)number();  // its bound
  return value_->get<std::int64_t>();
}

std::string Field::text() const {
  if (!value_->is_string()) wrong("a text");
  return value_->get<std::string>();
}

bool Field::boolean() const {
  if (!value_->is_boolean()) wrong("true or false");
  return value_->get<bool>();
}

const Document& Field::object() const {
  if (!value_->is_object()) wrong("an object");
  if (value_->size() > kMostElements) wrong("an object with fewer fields");
  return *value_;
}

std::string Field::shown() const {
  if (value_->is_string()) return value_->get<std::string>();
  if (value_->is_structured()) wrong("a number, a text, true, false or null");
  return value_->dump();
}

Result<Document> parse_document(std::string_view text, std::string_view name) {
  std::int64_t values = 0;
  const auto count = [&](int depth, Document::parse_event_t event, const Document&) {
    using Event = Document::parse_event_t;
    if (event == Event::key || event == Event::object_end || event == Event::array_end) return true;
    if (depth > kMostDepth) throw DocumentError("nested deeper than " + std::to_string(kMostDepth) + " levels");
    if (++values > kMostValues) throw DocumentError("holds more than " + std::to_string(kMostValues) + " values");
    return true;
  };
  try {
    return Document::parse(text, count);
  } catch (const Document::exception& error) {
    return Status{StatusCode::kBadInput,
                  printable(name, kShownPathBytes) + ": is no JSON: " + printable(error.what())};
  } catch (const DocumentError& error) {
    return Status{StatusCode::kBadInput, printable(name, kShownPathBytes) + ": " + error.what() + ", no report"};
  }
}

}  // namespace dsv4rt::report
