#include "replay/llm_serving_sim_parser.h"

#include "base/try.h"
#include "replay/block_identity.h"

namespace dsv4rt::replay {
namespace {

constexpr double kMsPerNanosecond = 1e-6;

}  // namespace

LlmServingSimParser::LlmServingSimParser(const RequestLogOptions& options, RecordErrors& errors)
    : errors_(errors), block_tokens_(options.block_tokens > 0 ? options.block_tokens : kTokenBlockTokens) {
  info_.format = "llmservingsim";
  info_.arrivals_ordered = false;
}

Status LlmServingSimParser::parse_call(const JsonFields& fields, Request& request) {
  DSV4RT_ASSIGN_OR_RETURN(request.input_tokens, fields.tokens("input_toks"));
  DSV4RT_ASSIGN_OR_RETURN(request.output_tokens, fields.tokens("output_toks"));
  const bool has_tokens = fields.has("input_tok_ids");
  if (has_tokens_ && *has_tokens_ != has_tokens) {
    return errors_.refuse_field(
        BadReason::kBlockIds, fields.field("input_tok_ids"), has_tokens ? "given" : "missing",
        *has_tokens_ ? "token ids, as in the log's first request" : "none, as in the log's first request");
  }
  if (has_tokens) {
    DSV4RT_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> tokens, fields.ids("input_tok_ids"));
    if (static_cast<std::int64_t>(tokens.size()) != request.input_tokens) {
      return errors_.refuse_field(BadReason::kBlockIds, fields.field("input_tok_ids"),
                                  std::to_string(tokens.size()) + " token ids",
                                  std::to_string(request.input_tokens) + ", the input_toks");
    }
    request.block_tokens = block_tokens_;
    request.block_ids = token_block_ids(tokens, block_tokens_);
  }
  if (!has_tokens_) {
    has_tokens_ = has_tokens;
    info_.identity = has_tokens ? PrefixIdentity::kGlobal : PrefixIdentity::kNone;
    info_.block_tokens = has_tokens ? block_tokens_ : 0;
  }
  return {};
}

Status LlmServingSimParser::parse(std::string_view record, std::vector<ParsedRequest>& out) {
  DSV4RT_ASSIGN_OR_RETURN(const JsonDocument document, parse_json_record(record, errors_));
  const JsonFields fields(document.root(), errors_);
  DSV4RT_ASSIGN_OR_RETURN(const Ticks arrival, fields.time("arrival_time_ns", kMsPerNanosecond));
  if (!fields.has("sub_requests")) {
    ParsedRequest parsed;
    parsed.arrival = arrival;
    DSV4RT_RETURN_IF_ERROR(parse_call(fields, parsed.request));
    out.push_back(std::move(parsed));
    return {};
  }
  DSV4RT_ASSIGN_OR_RETURN(const std::string name, fields.name("session_id"));
  DSV4RT_ASSIGN_OR_RETURN(const nlohmann::json* const calls, fields.array("sub_requests"));
  if (calls->empty()) {
    return errors_.refuse_field(BadReason::kMissingField, "sub_requests", "empty", "at least one request");
  }
  const std::int64_t session = sessions_++;
  double delay_ms = 0;
  for (std::size_t i = 0; i < calls->size(); ++i) {
    const nlohmann::json& call = (*calls)[i];
    const std::string place = "sub_requests[" + std::to_string(i) + "]";
    if (!call.is_object()) {
      return errors_.refuse_field(BadReason::kWrongType, place, describe_json(call), "an object");
    }
    const JsonFields call_fields(call, errors_, place + ".");
    ParsedRequest parsed;
    parsed.request.session = session;
    parsed.request.id = name + "#" + std::to_string(i);
    DSV4RT_RETURN_IF_ERROR(parse_call(call_fields, parsed.request));
    if (i == 0) {
      parsed.arrival = arrival;
    } else {
      parsed.request.delay_ms = delay_ms;
    }
    delay_ms = 0;
    if (call_fields.has("tool_duration_ns")) {
      DSV4RT_ASSIGN_OR_RETURN(delay_ms, call_fields.duration_ms("tool_duration_ns", kMsPerNanosecond));
    }
    out.push_back(std::move(parsed));
  }
  return {};
}

}  // namespace dsv4rt::replay
