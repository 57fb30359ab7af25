#include "replay/log_format.h"

#include <algorithm>

#include "base/message_text.h"
#include "base/try.h"
#include "replay/azure_parser.h"
#include "replay/bailian_parser.h"
#include "replay/burstgpt_parser.h"
#include "replay/csv_line.h"
#include "replay/llm_serving_sim_parser.h"
#include "replay/mooncake_parser.h"
#include "replay/text_parser.h"
#include "replay/weka_parser.h"

namespace dsv4rt::replay {
namespace {

constexpr const char* kKnownFormats =
    "native, Mooncake, AIPerf or Dynamo sessions, Qwen-Bailian, WEKA sessions, LLMServingSim, OpenAI batch or ShareGPT "
    "JSON; Azure or BurstGPT CSV with its header";

Result<std::unique_ptr<RecordParser>> csv_parser(std::string_view header, RecordErrors& errors) {
  DSV4RT_ASSIGN_OR_RETURN(const CsvColumns columns, CsvColumns::create(header, errors));
  if (AzureParser::recognises(columns)) return std::unique_ptr<RecordParser>(new AzureParser(errors));
  if (BurstGptParser::recognises(columns)) return std::unique_ptr<RecordParser>(new BurstGptParser(errors));
  return errors.refuse_field(BadReason::kUnsupported, "first line", quote(header), kKnownFormats);
}

Result<std::unique_ptr<RecordParser>> json_parser(const nlohmann::json& object, const RequestLogOptions& options,
                                                  const ArrivalOrder& arrivals, RecordErrors& errors) {
  using Parser = std::unique_ptr<RecordParser>;
  using Dialect = MooncakeParser::Dialect;
  const auto has = [&object](const char* key) { return object.contains(key); };
  const auto mooncake = [&](Dialect dialect) { return Parser(new MooncakeParser(dialect, options, arrivals, errors)); };
  if (has("dsv4_trace")) return mooncake(Dialect::kNative);
  if (has("requests") && has("block_size")) return Parser(new WekaParser(options, errors));
  if (has("chat_id") && has("input_length")) return Parser(new BailianParser(options, errors));
  if (has("arrival_time_ns")) return Parser(new LlmServingSimParser(options, errors));
  if (has("custom_id") && has("body")) return Parser(new TextParser(TextParser::Kind::kOpenAiBatch, errors));
  if (has("conversations")) return Parser(new TextParser(TextParser::Kind::kShareGpt, errors));
  if (has("input_length") && has("session_id")) return mooncake(Dialect::kAiperf);
  if (has("input_length") && has("tokens")) return mooncake(Dialect::kNative);
  if (has("input_length") || has("hash_ids")) return mooncake(Dialect::kMooncake);
  std::string keys;
  for (const auto& [key, value] : object.items()) keys += (keys.empty() ? "" : ", ") + key;
  return errors.refuse_field(BadReason::kUnsupported, "first record", "an object of " + quote(keys), kKnownFormats);
}

}  // namespace

LogShape log_shape(std::string_view head) noexcept {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t first = head.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return LogShape::kLines;
  head.remove_prefix(first);
  if (head.front() == '[') return LogShape::kElements;
  if (head.front() != '{') return LogShape::kLines;
  const std::size_t newline = head.find('\n');
  // A whole session on one line may be longer than lines are accepted to be.
  if (newline == std::string_view::npos && head.size() >= LogBytes::kBufferBytes / 2) {
    return head.find("\"requests\"") != std::string_view::npos ? LogShape::kElements : LogShape::kLines;
  }
  const std::string_view line = head.substr(0, newline);
  const char last = line[line.find_last_not_of(kBlank)];
  return newline != std::string_view::npos && std::string_view("{[,:").find(last) != std::string_view::npos
             ? LogShape::kElements
             : LogShape::kLines;
}

Result<std::unique_ptr<RecordParser>> parser_for(std::string_view first_record, const RequestLogOptions& options,
                                                 const ArrivalOrder& arrivals, RecordErrors& errors) {
  const std::size_t first = first_record.find_first_not_of(" \t");
  if (first == std::string_view::npos || first_record[first] != '{') return csv_parser(first_record, errors);
  DSV4RT_ASSIGN_OR_RETURN(const JsonDocument document, parse_json_record(first_record, errors));
  return json_parser(document.root(), options, arrivals, errors);
}

}  // namespace dsv4rt::replay
