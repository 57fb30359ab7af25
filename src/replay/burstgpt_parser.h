// BurstGPT traces of every version.
#pragma once

#include <optional>

#include "replay/csv_line.h"
#include "replay/record_parser.h"
#include "replay/session_names.h"

namespace dsv4rt::replay {

// CSV with the columns Timestamp (seconds), Request tokens and Response tokens (0 for a request that failed); newer
// files put Session ID and Elapsed time between them, so columns are found by name. Requests are in order of time;
// nothing says what prompts share. Turns of a session keep their arrival times.
class BurstGptParser : public RecordParser {
 public:
  static bool recognises(const CsvColumns& columns);
  explicit BurstGptParser(RecordErrors& errors);

  Status parse(std::string_view record, std::vector<ParsedRequest>& out) override;
  [[nodiscard]] const SourceInfo& info() const override { return info_; }

 private:
  RecordErrors& errors_;
  SourceInfo info_;
  std::optional<CsvColumns> columns_;  // set by the first record
  SessionNames sessions_;
};

}  // namespace dsv4rt::replay
