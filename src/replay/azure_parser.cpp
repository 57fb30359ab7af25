#include "replay/azure_parser.h"

#include "base/message_text.h"
#include "base/try.h"
#include "replay/time_stamp.h"

namespace dsv4rt::replay {
namespace {

constexpr const char* kAzureTime = "TIMESTAMP";
constexpr const char* kAzureInput = "ContextTokens";
constexpr const char* kAzureOutput = "GeneratedTokens";

}  // namespace

bool AzureParser::recognises(const CsvColumns& columns) {
  return columns.has(kAzureTime) && columns.has(kAzureInput) && columns.has(kAzureOutput);
}

AzureParser::AzureParser(RecordErrors& errors) : errors_(errors) {
  info_.format = "azure";
}

Status AzureParser::parse(std::string_view record, std::vector<ParsedRequest>& out) {
  if (!columns_) {
    DSV4RT_ASSIGN_OR_RETURN(columns_, CsvColumns::create(record, errors_));
    return {};
  }
  DSV4RT_ASSIGN_OR_RETURN(const CsvLine line, CsvLine::create(record, *columns_, errors_));
  ParsedRequest parsed;
  const std::string& time = line.text(columns_->find(kAzureTime));
  parsed.arrival = parse_time_stamp(time);
  if (!parsed.arrival) {
    return errors_.refuse_field(BadReason::kWrongType, kAzureTime, quote(time),
                                "a time like 2023-11-16 18:17:03.9799600, with or without an offset");
  }
  DSV4RT_ASSIGN_OR_RETURN(parsed.request.input_tokens, line.tokens(columns_->find(kAzureInput), kAzureInput, errors_));
  DSV4RT_ASSIGN_OR_RETURN(parsed.request.output_tokens,
                          line.tokens(columns_->find(kAzureOutput), kAzureOutput, errors_));
  out.push_back(std::move(parsed));
  return {};
}

}  // namespace dsv4rt::replay
