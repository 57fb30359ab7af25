#include "replay/burstgpt_parser.h"

#include "base/message_text.h"
#include "base/try.h"
#include "replay/json_fields.h"

namespace dsv4rt::replay {
namespace {

constexpr const char* kBurstTime = "Timestamp";
constexpr const char* kBurstInput = "Request tokens";
constexpr const char* kBurstOutput = "Response tokens";
constexpr const char* kBurstSession = "Session ID";

}  // namespace

bool BurstGptParser::recognises(const CsvColumns& columns) {
  return columns.has(kBurstTime) && columns.has(kBurstInput) && columns.has(kBurstOutput);
}

BurstGptParser::BurstGptParser(RecordErrors& errors) : errors_(errors) {
  info_.format = "burstgpt";
}

Status BurstGptParser::parse(std::string_view record, std::vector<ParsedRequest>& out) {
  if (!columns_) {
    DSV4RT_ASSIGN_OR_RETURN(columns_, CsvColumns::create(record, errors_));
    return {};
  }
  DSV4RT_ASSIGN_OR_RETURN(const CsvLine line, CsvLine::create(record, *columns_, errors_));
  ParsedRequest parsed;
  const std::int32_t time_column = columns_->find(kBurstTime);
  DSV4RT_ASSIGN_OR_RETURN(const double seconds, line.number(time_column, kBurstTime, errors_));
  DSV4RT_ASSIGN_OR_RETURN(parsed.arrival,
                          checked_ticks(seconds, kMsPerSecond, kBurstTime, quote(line.text(time_column)), errors_));
  DSV4RT_ASSIGN_OR_RETURN(parsed.request.input_tokens, line.tokens(columns_->find(kBurstInput), kBurstInput, errors_));
  DSV4RT_ASSIGN_OR_RETURN(parsed.request.output_tokens,
                          line.tokens(columns_->find(kBurstOutput), kBurstOutput, errors_));
  const std::int32_t session_column = columns_->find(kBurstSession);
  if (session_column >= 0 && !line.text(session_column).empty()) {
    parsed.request.session = sessions_.find_or_add(line.text(session_column));
  }
  out.push_back(std::move(parsed));
  return {};
}

}  // namespace dsv4rt::replay
