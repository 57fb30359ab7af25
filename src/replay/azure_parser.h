// Azure's public LLM inference traces (2023 and 2024).
#pragma once

#include <optional>

#include "replay/csv_line.h"
#include "replay/record_parser.h"

namespace dsv4rt::replay {

// CSV with the columns TIMESTAMP (calendar time of up to 9 decimals, with or without an offset), ContextTokens and
// GeneratedTokens. Requests are in order of time; nothing says what prompts share.
class AzureParser : public RecordParser {
 public:
  // Whether a header's columns are this format's.
  static bool recognises(const CsvColumns& columns);
  explicit AzureParser(RecordErrors& errors);

  Status parse(std::string_view record, std::vector<ParsedRequest>& out) override;
  [[nodiscard]] const SourceInfo& info() const override { return info_; }

 private:
  RecordErrors& errors_;
  SourceInfo info_;
  std::optional<CsvColumns> columns_;  // set by the first record
};

}  // namespace dsv4rt::replay
