// Workload files of LLMServingSim.
#pragma once

#include <optional>

#include "replay/json_fields.h"
#include "replay/record_parser.h"

namespace dsv4rt::replay {

// A line is a request (`input_toks`, `output_toks`, `arrival_time_ns`, optionally `input_tok_ids`) or a session
// (`session_id`, `arrival_time_ns`, `sub_requests`, each with `tool_duration_ns` to the next turn). Any order of
// arrivals. Token ids become block ids of 256 tokens unless the options say otherwise; all requests have them or none.
class LlmServingSimParser : public RecordParser {
 public:
  LlmServingSimParser(const RequestLogOptions& options, RecordErrors& errors);

  Status parse(std::string_view record, std::vector<ParsedRequest>& out) override;
  [[nodiscard]] const SourceInfo& info() const override { return info_; }

 private:
  Status parse_call(const JsonFields& fields, Request& request);

  RecordErrors& errors_;
  SourceInfo info_;
  std::int32_t block_tokens_;
  std::optional<bool> has_tokens_;
  std::int64_t sessions_ = 0;
};

}  // namespace dsv4rt::replay
