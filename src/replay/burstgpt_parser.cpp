#include "replay/burstgpt_parser.h"

#include "base/message_text.h"
#include "base/try.h"
#include "replay/json_fields.h"

namespace dsv4rt::replay {
namespace {

constexpr const char* kTime = "Timestamp";
constexpr const char* kInput = "Request tokens";
constexpr const char* kOutput = "Response tokens";
constexpr const char* kSession = "Session ID";
constexpr double kMsPerSecond = 1000;

}  // namespace

bool BurstGptParser::recognises(const CsvColumns& columns) {
  return columns.has(kTime) && columns.has(kInput) && columns.has(kOutput);
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
  const std::int32_t time_column = columns_->find(kTime);
  DSV4RT_ASSIGN_OR_RETURN(const double seconds, line.number(time_column, kTime, errors_));
  DSV4RT_ASSIGN_OR_RETURN(parsed.arrival,
                          checked_ticks(seconds, kMsPerSecond, kTime, quote(line.text(time_column)), errors_));
  DSV4RT_ASSIGN_OR_RETURN(parsed.request.input_tokens, line.tokens(columns_->find(kInput), kInput, errors_));
  DSV4RT_ASSIGN_OR_RETURN(parsed.request.output_tokens, line.tokens(columns_->find(kOutput), kOutput, errors_));
  const std::int32_t session_column = columns_->find(kSession);
  if (session_column >= 0 && !line.text(session_column).empty()) {
    parsed.request.session = sessions_.find_or_add(line.text(session_column));
  }
  out.push_back(std::move(parsed));
  return {};
}

}  // namespace dsv4rt::replay
