#include "replay/csv_line.h"

#include <charconv>

#include "base/message_text.h"
#include "base/try.h"
#include "replay/json_fields.h"

namespace dsv4rt::replay {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

Result<std::vector<std::string>> split_csv_line(std::string_view line, RecordErrors& errors) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  bool closed = false;  // the field's closing quote has been read
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      if (c != '"') {
        fields.back() += c;
      } else if (i + 1 < line.size() && line[i + 1] == '"') {
        fields.back() += '"';
        ++i;
      } else {
        quoted = false;
        closed = true;
      }
    } else if (c == ',') {
      fields.emplace_back();
      closed = false;
    } else if (c == '"' && fields.back().empty() && !closed) {
      quoted = true;
    } else if (c == '"' || closed) {
      return errors.refuse(BadReason::kSyntax,
                           "not valid CSV at byte " + std::to_string(i) + ": a quote inside a field");
    } else {
      fields.back() += c;
    }
  }
  if (quoted) return errors.refuse(BadReason::kSyntax, "not valid CSV: a quoted field does not end on its line");
  for (std::string& field : fields) field = std::string(trimmed(field));
  return fields;
}

Result<CsvColumns> CsvColumns::create(std::string_view header, RecordErrors& errors) {
  CsvColumns columns;
  DSV4RT_ASSIGN_OR_RETURN(std::vector<std::string> names, split_csv_line(header, errors));
  for (std::string& name : names) {
    if (columns.find(name) >= 0) {
      return errors.refuse_field(BadReason::kDuplicate, "header", "column " + quote(name) + " twice",
                                 "each column name once");
    }
    columns.names_.push_back(std::move(name));
  }
  return columns;
}

std::int32_t CsvColumns::find(std::string_view name) const {
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (names_[i] == name) return static_cast<std::int32_t>(i);
  }
  return -1;
}

Result<CsvLine> CsvLine::create(std::string_view line, const CsvColumns& columns, RecordErrors& errors) {
  CsvLine parsed;
  DSV4RT_ASSIGN_OR_RETURN(parsed.fields_, split_csv_line(line, errors));
  if (parsed.fields_.size() != columns.size()) {
    return errors.refuse_field(BadReason::kSyntax, "columns", std::to_string(parsed.fields_.size()) + " fields",
                               std::to_string(columns.size()) + " as in the header");
  }
  return parsed;
}

Result<std::int64_t> CsvLine::tokens(std::int32_t column, std::string_view name, RecordErrors& errors) const {
  const std::string accepted = "an integer of 0 to " + std::to_string(kMaxTokens);
  const std::string& field = text(column);
  if (field.empty()) return errors.refuse_field(BadReason::kMissingField, name, "empty", accepted);
  std::int64_t value = 0;
  const auto parsed = std::from_chars(field.data(), field.data() + field.size(), value);
  if (parsed.ec == std::errc::invalid_argument || parsed.ptr != field.data() + field.size()) {
    return errors.refuse_field(BadReason::kWrongType, name, quote(field), accepted);
  }
  if (parsed.ec != std::errc{} || value < 0 || value > kMaxTokens) {
    return errors.refuse_field(BadReason::kOutOfRange, name, quote(field), accepted);
  }
  return value;
}

Result<double> CsvLine::number(std::int32_t column, std::string_view name, RecordErrors& errors) const {
  const std::string& field = text(column);
  if (field.empty()) return errors.refuse_field(BadReason::kMissingField, name, "empty", "a number");
  double value = 0;
  const auto parsed = std::from_chars(field.data(), field.data() + field.size(), value);
  if (parsed.ec != std::errc{} || parsed.ptr != field.data() + field.size()) {
    return errors.refuse_field(BadReason::kWrongType, name, quote(field), "a number");
  }
  return value;
}

}  // namespace dsv4rt::replay
