#include "replay/mooncake_parser.h"

#include <utility>

#include "base/message_text.h"
#include "base/try.h"
#include "replay/block_identity.h"

namespace dsv4rt::replay {
namespace {

constexpr std::int32_t kMooncakeBlockTokens = 512;
// Bound on what all sessions remember together: half a GiB.
constexpr std::int64_t kMaxHistoryBlocks = std::int64_t{1} << 26;

std::string format_name(MooncakeParser::Dialect dialect) {
  switch (dialect) {
    case MooncakeParser::Dialect::kMooncake:
      return "mooncake";
    case MooncakeParser::Dialect::kAiperf:
      return "aiperf";
    case MooncakeParser::Dialect::kNative:
      return "native";
  }
  return "mooncake";
}

}  // namespace

MooncakeParser::MooncakeParser(Dialect dialect, const RequestLogOptions& options, const ArrivalOrder& arrivals,
                               RecordErrors& errors)
    : dialect_(dialect), arrivals_(arrivals), errors_(errors), session_turns_(options.session_turns) {
  info_.format = format_name(dialect);
  info_.block_tokens = options.block_tokens;
  info_.arrivals_ordered = dialect != Dialect::kAiperf;
  block_tokens_fixed_ = options.block_tokens > 0;
}

Status MooncakeParser::set_block_tokens(const JsonFields& fields, const char* key) {
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t block_tokens, fields.integer(key, 1, kMaxBlockTokens));
  if (block_tokens_fixed_ && block_tokens != info_.block_tokens) {
    return errors_.refuse_field(BadReason::kBlockIds, fields.field(key), std::to_string(block_tokens),
                                std::to_string(info_.block_tokens) + ", as the flag or an earlier line says");
  }
  info_.block_tokens = static_cast<std::int32_t>(block_tokens);
  block_tokens_fixed_ = true;
  return {};
}

Status MooncakeParser::parse_header(const JsonFields& fields) {
  DSV4RT_RETURN_IF_ERROR(fields.integer("dsv4_trace", 1, 1).status());
  if (fields.has("block_tokens")) DSV4RT_RETURN_IF_ERROR(set_block_tokens(fields, "block_tokens"));
  if (fields.has("prefix_identity")) {
    DSV4RT_ASSIGN_OR_RETURN(const std::string name, fields.name("prefix_identity"));
    if (name != "none" && name != "session" && name != "global") {
      return errors_.refuse_field(BadReason::kOutOfRange, "prefix_identity", quote(name), "none, session or global");
    }
    if (name == "session") info_.identity = PrefixIdentity::kSession;
  }
  if (fields.has("session_turns") && session_turns_ == SessionTurns::kAuto) {
    DSV4RT_ASSIGN_OR_RETURN(const std::string name, fields.name("session_turns"));
    if (name != "full" && name != "delta") {
      return errors_.refuse_field(BadReason::kOutOfRange, "session_turns", quote(name), "full or delta");
    }
    session_turns_ = name == "full" ? SessionTurns::kFull : SessionTurns::kDelta;
  }
  if (fields.has("arrivals_ordered")) {
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t ordered, fields.integer("arrivals_ordered", 0, 1));
    info_.arrivals_ordered = ordered == 1;
  }
  if (fields.has("lengths_estimated")) {
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t estimated, fields.integer("lengths_estimated", 0, 1));
    info_.lengths_estimated = estimated == 1;
  }
  return {};
}

Status MooncakeParser::read_block_ids(const JsonFields& fields, Request& request) {
  const bool has_tokens = dialect_ == Dialect::kNative && fields.has("tokens") && !fields.has("hash_ids");
  const bool has_ids = fields.has("hash_ids") || has_tokens;
  if (first_request_) {
    if (has_ids && info_.identity == PrefixIdentity::kNone) info_.identity = PrefixIdentity::kGlobal;
    if (!has_ids) info_.identity = PrefixIdentity::kNone;
  }
  if (fields.has("block_size")) DSV4RT_RETURN_IF_ERROR(set_block_tokens(fields, "block_size"));
  if (info_.identity == PrefixIdentity::kNone) {
    if (!has_ids) return {};
    return errors_.refuse_field(BadReason::kBlockIds, "hash_ids", "given",
                                "none, as in the log's first request: prompts of such a log cannot be compared");
  }
  if (!has_ids) {
    return errors_.refuse_field(BadReason::kMissingField, "hash_ids", "missing",
                                "an array of block ids, as in the log's first request");
  }
  if (info_.block_tokens == 0) info_.block_tokens = has_tokens ? kTokenBlockTokens : kMooncakeBlockTokens;
  request.block_tokens = info_.block_tokens;
  if (has_tokens) {
    DSV4RT_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> tokens, fields.ids("tokens"));
    if (static_cast<std::int64_t>(tokens.size()) != request.input_tokens) {
      return errors_.refuse_field(BadReason::kBlockIds, "tokens", std::to_string(tokens.size()) + " token ids",
                                  std::to_string(request.input_tokens) + ", the input_length");
    }
    request.block_ids = token_block_ids(tokens, info_.block_tokens);
  } else {
    DSV4RT_ASSIGN_OR_RETURN(request.block_ids, fields.ids("hash_ids"));
    DSV4RT_RETURN_IF_ERROR(
        check_block_ids(request.block_ids.size(), request.input_tokens, info_.block_tokens, "hash_ids", errors_));
  }
  if (fields.has("salt")) {
    DSV4RT_ASSIGN_OR_RETURN(const std::string salt, fields.name("salt"));
    for (std::uint64_t& id : request.block_ids) id = mix_ids(text_id(salt), id);
  }
  return {};
}

Status MooncakeParser::read_times(const JsonFields& fields, bool later_turn, ParsedRequest& parsed) {
  const bool has_time = fields.has("timestamp");
  if (first_request_) info_.arrival_times = has_time;
  if (has_time && !info_.arrival_times) {
    return errors_.refuse_field(BadReason::kTimeOrder, "timestamp", "given", "none, as in the log's first request");
  }
  if (has_time) {
    DSV4RT_ASSIGN_OR_RETURN(parsed.arrival, fields.time("timestamp", 1.0));
    DSV4RT_RETURN_IF_ERROR(arrivals_.check(*parsed.arrival, info_.arrivals_ordered, errors_));
  } else if (info_.arrival_times && !later_turn) {
    return errors_.refuse_field(BadReason::kMissingField, "timestamp", "missing",
                                "a time in ms; only later turns of a session do without");
  }
  if (fields.has("delay")) {
    DSV4RT_ASSIGN_OR_RETURN(const double delay_ms, fields.duration_ms("delay", 1.0));
    if (later_turn) parsed.request.delay_ms = delay_ms;
  }
  return {};
}

Status MooncakeParser::add_history(Session& session, Request& request) {
  const bool identity = info_.identity != PrefixIdentity::kNone;
  std::optional<bool> delta = session.delta;
  if (session.turns > 0 && !delta) {
    // A whole prompt begins as the session's first one did; a difference does not.
    const bool same_start = !request.block_ids.empty() && session.first_id == request.block_ids.front();
    delta = session_turns_ == SessionTurns::kDelta || !same_start;
  }
  if (session.turns > 0 && !*delta) {
    if (!session.delta) {
      history_blocks_ -= session.history.tokens() / info_.block_tokens;
      session.history = SessionHistory(info_.block_tokens);
    }
    session.delta = delta;
    return {};
  }
  const std::int64_t new_tokens = request.input_tokens + request.output_tokens;
  if (session.tokens + new_tokens > kMaxTokens) {
    return errors_.refuse_field(BadReason::kOutOfRange, "input_length",
                                std::to_string(session.tokens + request.input_tokens) + " with the turns before it",
                                "at most " + std::to_string(kMaxTokens) + " tokens in a session");
  }
  session.delta = delta;
  const std::int64_t prompt_tokens = session.tokens + request.input_tokens;
  session.tokens += new_tokens;
  if (identity) {
    history_blocks_ += new_tokens / info_.block_tokens + 1;
    if (history_blocks_ > kMaxHistoryBlocks) {
      return {StatusCode::kResourceExhausted, errors_.place() + ": sessions logged as differences hold more than " +
                                                  std::to_string(kMaxHistoryBlocks) +
                                                  " blocks; fewer or shorter sessions are accepted"};
    }
    if (session.turns == 0 && !request.block_ids.empty()) session.first_id = request.block_ids.front();
    session.history.append_blocks(request.block_ids, request.input_tokens);
    request.block_ids = session.history.block_ids();
    // Nobody else has the answer: line and length of history name it.
    session.history.append_unique(
        mix_ids(static_cast<std::uint64_t>(request.session), static_cast<std::uint64_t>(session.turns)) | 1U,
        request.output_tokens);
  }
  request.input_tokens = prompt_tokens;
  return {};
}

Status MooncakeParser::parse(std::string_view record, std::vector<ParsedRequest>& out) {
  DSV4RT_ASSIGN_OR_RETURN(const JsonDocument document, parse_json_record(record, errors_));
  const JsonFields fields(document.root(), errors_);
  if (document.root().contains("dsv4_trace")) {
    if (!std::exchange(first_record_, false)) {
      return errors_.refuse(BadReason::kSyntax, "a header; accepted: one, in the log's first line");
    }
    Status header = parse_header(fields);
    lost_ = !header.ok();
    return header;
  }
  first_record_ = false;
  ParsedRequest parsed;
  Request& request = parsed.request;
  DSV4RT_ASSIGN_OR_RETURN(request.input_tokens, fields.tokens("input_length"));
  DSV4RT_ASSIGN_OR_RETURN(request.output_tokens, fields.tokens("output_length"));
  std::string session_name;
  if (fields.has("session_id")) {
    DSV4RT_ASSIGN_OR_RETURN(session_name, fields.name("session_id"));
  }
  const bool later_turn = fields.has("session_id") && names_.find(session_name) >= 0;
  DSV4RT_RETURN_IF_ERROR(read_times(fields, later_turn, parsed));
  DSV4RT_RETURN_IF_ERROR(read_block_ids(fields, request));
  if (fields.has("priority")) {
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t priority, fields.integer("priority", -1'000'000, 1'000'000));
    request.priority = static_cast<std::int32_t>(priority);
  }
  if (fields.has("request_id")) {
    DSV4RT_ASSIGN_OR_RETURN(request.id, fields.name("request_id"));
  }
  if (fields.has("session_id")) {
    request.session = later_turn ? names_.find(session_name) : names_.count();
    if (session_turns_ != SessionTurns::kFull) {
      Session first{{}, {}, 0, 0, SessionHistory(info_.block_tokens)};
      Session& session = later_turn ? sessions_[static_cast<std::size_t>(request.session)] : first;
      DSV4RT_RETURN_IF_ERROR(add_history(session, request));
      ++session.turns;
      if (!later_turn) sessions_.push_back(std::move(first));
    }
    names_.find_or_add(session_name);
  }
  first_request_ = false;
  out.push_back(std::move(parsed));
  return {};
}

}  // namespace dsv4rt::replay
