#include "replay/weka_parser.h"

#include "base/message_text.h"
#include "base/try.h"
#include "replay/block_identity.h"

namespace dsv4rt::replay {
namespace {

constexpr std::uint64_t kScopeShift = 32;  // local ids and session numbers fit into half an id each

}  // namespace

WekaParser::WekaParser(const RequestLogOptions& options, RecordErrors& errors)
    : errors_(errors), asked_block_tokens_(options.block_tokens) {
  info_.format = "weka";
  info_.identity = PrefixIdentity::kSession;
  info_.arrivals_ordered = false;
}

Status WekaParser::parse(std::string_view record, std::vector<ParsedRequest>& out) {
  DSV4RT_ASSIGN_OR_RETURN(const JsonDocument document, parse_json_record(record, errors_));
  const JsonFields fields(document.root(), errors_);
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t block_tokens, fields.integer("block_size", 1, kMaxBlockTokens));
  const std::int32_t expected = info_.block_tokens > 0 ? info_.block_tokens : asked_block_tokens_;
  if (expected > 0 && block_tokens != expected) {
    return errors_.refuse_field(BadReason::kBlockIds, "block_size", std::to_string(block_tokens),
                                std::to_string(expected) + ", as the flag or the log's first session says");
  }
  PrefixIdentity identity = PrefixIdentity::kSession;
  if (fields.has("hash_id_scope")) {
    DSV4RT_ASSIGN_OR_RETURN(const std::string scope, fields.name("hash_id_scope"));
    if (scope != "local" && scope != "global") {
      return errors_.refuse_field(BadReason::kOutOfRange, "hash_id_scope", quote(scope), "local or global");
    }
    if (scope == "global") identity = PrefixIdentity::kGlobal;
  }
  if (info_.block_tokens > 0 && identity != info_.identity) {
    return errors_.refuse_field(BadReason::kBlockIds, "hash_id_scope", std::string(prefix_identity_name(identity)),
                                std::string(prefix_identity_name(info_.identity)) + ", as in the log's first session");
  }
  info_.block_tokens = static_cast<std::int32_t>(block_tokens);
  info_.identity = identity;
  Place place;
  place.id = "line " + std::to_string(errors_.line());
  if (fields.has("id")) {
    DSV4RT_ASSIGN_OR_RETURN(place.id, fields.name("id"));
  }
  place.session = sessions_++;
  place.scope = records_++;
  return parse_requests(fields, place, out);
}

Status WekaParser::parse_requests(const JsonFields& holder, const Place& place, std::vector<ParsedRequest>& out) {
  DSV4RT_ASSIGN_OR_RETURN(const nlohmann::json* const entries, holder.array("requests"));
  bool first = true;
  std::size_t number = 0;
  for (const nlohmann::json& entry : *entries) {
    std::string index = "[";
    index.append(std::to_string(number++)).append("]");
    if (!entry.is_object()) {
      return errors_.refuse_field(BadReason::kWrongType, holder.field("requests") + index, describe_json(entry),
                                  "an object");
    }
    Place inner = place;
    inner.prefix = holder.field("requests") + index + ".";
    inner.id = place.id + "#" + std::to_string(number - 1);
    const JsonFields fields(entry, errors_, inner.prefix);
    std::string type = "n";
    if (fields.has("type")) {
      DSV4RT_ASSIGN_OR_RETURN(type, fields.name("type"));
    }
    if (type == "subagent") {
      DSV4RT_ASSIGN_OR_RETURN(const Ticks at, fields.time("t", kMsPerSecond));
      inner.begin = place.begin + at;
      inner.session = sessions_++;
      DSV4RT_RETURN_IF_ERROR(parse_requests(fields, inner, out));
    } else if (type == "n" || type == "s") {
      DSV4RT_RETURN_IF_ERROR(parse_request(fields, inner, first, out));
      first = false;
    } else {
      return errors_.refuse_field(BadReason::kUnsupported, fields.field("type"), quote(type), "n, s or subagent");
    }
  }
  return {};
}

Status WekaParser::parse_request(const JsonFields& fields, const Place& place, bool first,
                                 std::vector<ParsedRequest>& out) {
  ParsedRequest parsed;
  Request& request = parsed.request;
  request.id = place.id;
  request.session = place.session;
  DSV4RT_ASSIGN_OR_RETURN(Ticks at, fields.time("t", kMsPerSecond));
  if (at < place.begin) at += place.begin;
  if (!first && fields.has("think_time")) {
    DSV4RT_ASSIGN_OR_RETURN(request.delay_ms, fields.duration_ms("think_time", kMsPerSecond));
  } else {
    parsed.arrival = at;
  }
  DSV4RT_ASSIGN_OR_RETURN(request.input_tokens, fields.tokens("in"));
  DSV4RT_ASSIGN_OR_RETURN(request.output_tokens, fields.tokens("out"));
  request.block_tokens = info_.block_tokens;
  // A prompt without a whole block need not have any.
  if (fields.has("hash_ids")) {
    DSV4RT_ASSIGN_OR_RETURN(request.block_ids, fields.ids("hash_ids"));
  }
  DSV4RT_RETURN_IF_ERROR(check_block_ids(request.block_ids.size(), request.input_tokens, info_.block_tokens,
                                         fields.field("hash_ids"), errors_));
  if (info_.identity == PrefixIdentity::kSession) {
    for (std::uint64_t& id : request.block_ids) {
      if (id >> kScopeShift != 0) {
        return errors_.refuse_field(BadReason::kOutOfRange, fields.field("hash_ids"), std::to_string(id),
                                    "ids below 2^32 in a log with ids of sessions");
      }
      id |= place.scope << kScopeShift;
    }
  }
  out.push_back(std::move(parsed));
  return {};
}

}  // namespace dsv4rt::replay
