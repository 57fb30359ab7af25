// Qwen-Bailian usage traces.
#pragma once

#include <unordered_map>

#include "replay/json_fields.h"
#include "replay/record_parser.h"

namespace dsv4rt::replay {

// A request a line: `chat_id`, `parent_chat_id` (-1: none), `timestamp` in seconds, `input_length`, `output_length`,
// `hash_ids` of 16 tokens. Prompts are whole; turns keep their arrival times. The id of a partial last block is that of
// the tokens it holds then, so it does not match once the block is full.
class BailianParser : public RecordParser {
 public:
  BailianParser(const RequestLogOptions& options, RecordErrors& errors);

  Status parse(std::string_view record, std::vector<ParsedRequest>& out) override;
  [[nodiscard]] const SourceInfo& info() const override { return info_; }

 private:
  RecordErrors& errors_;
  SourceInfo info_;
  std::unordered_map<std::int64_t, std::int64_t> session_of_chat_;
  std::int64_t sessions_ = 0;
};

}  // namespace dsv4rt::replay
