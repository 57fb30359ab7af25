// Lines of a CSV file with a header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4rt/status.h"
#include "replay/record_errors.h"

namespace dsv4rt::replay {

// The fields of one line: separated by commas, optionally in double quotes, in which "" is a quote. kBadInput for a
// quote that does not end or that stands inside a field.
Result<std::vector<std::string>> split_csv_line(std::string_view line, RecordErrors& errors);

// The header's columns. Names are compared without surrounding white space.
class CsvColumns {
 public:
  // kBadInput naming a column that occurs twice or has no name.
  static Result<CsvColumns> create(std::string_view header, RecordErrors& errors);

  [[nodiscard]] bool has(std::string_view name) const { return find(name) >= 0; }
  // The column's number, or -1.
  [[nodiscard]] std::int32_t find(std::string_view name) const;
  [[nodiscard]] std::size_t size() const noexcept { return names_.size(); }

 private:
  std::vector<std::string> names_;
};

// A line's fields by column number. kBadInput if their number is not the header's.
class CsvLine {
 public:
  static Result<CsvLine> create(std::string_view line, const CsvColumns& columns, RecordErrors& errors);

  [[nodiscard]] const std::string& text(std::int32_t column) const { return fields_[static_cast<std::size_t>(column)]; }
  // An integer of 0 to kMaxTokens. `name` is the column's, for the message.
  Result<std::int64_t> tokens(std::int32_t column, std::string_view name, RecordErrors& errors) const;
  // A decimal number.
  Result<double> number(std::int32_t column, std::string_view name, RecordErrors& errors) const;

 private:
  std::vector<std::string> fields_;
};

}  // namespace dsv4rt::replay
