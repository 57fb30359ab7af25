// Logs that hold text instead of lengths: OpenAI batch files and ShareGPT conversations.
#pragma once

#include <cstdint>
#include <string_view>

#include "replay/json_fields.h"
#include "replay/record_parser.h"

namespace dsv4rt::replay {

// An estimate of a text's tokens: 4 for every 3 words (runs of bytes without white space), and one for every character
// outside ASCII. Lengths of a log read with it are marked as estimated.
std::int64_t estimate_tokens(std::string_view text) noexcept;

// OpenAI batch: `custom_id`, `body` with `messages` or `prompt`, and `max_tokens` or `max_completion_tokens`, which is
// taken for the output's length. ShareGPT: `conversations` of `from` and `value`; every answer ("gpt", "assistant") is
// a request whose prompt is all text before it. Neither has times or says what prompts share.
class TextParser : public RecordParser {
 public:
  enum class Kind : std::uint8_t { kOpenAiBatch, kShareGpt };
  TextParser(Kind kind, RecordErrors& errors);

  Status parse(std::string_view record, std::vector<ParsedRequest>& out) override;
  [[nodiscard]] const SourceInfo& info() const override { return info_; }

 private:
  Status parse_batch(const JsonFields& fields, std::vector<ParsedRequest>& out);
  Status parse_conversation(const JsonFields& fields, std::vector<ParsedRequest>& out);
  // Tokens of text, or of an array of parts with `text`.
  Result<std::int64_t> content_tokens(const nlohmann::json& content, const std::string& field);

  Kind kind_;
  RecordErrors& errors_;
  SourceInfo info_;
  std::int64_t sessions_ = 0;
};

}  // namespace dsv4rt::replay
