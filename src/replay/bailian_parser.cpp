#include "replay/bailian_parser.h"

#include <limits>

#include "base/try.h"
#include "replay/block_identity.h"

namespace dsv4rt::replay {
namespace {

constexpr std::int32_t kBailianBlockTokens = 16;

}  // namespace

BailianParser::BailianParser(const RequestLogOptions& options, RecordErrors& errors) : errors_(errors) {
  info_.format = "bailian";
  info_.identity = PrefixIdentity::kGlobal;
  info_.block_tokens = options.block_tokens > 0 ? options.block_tokens : kBailianBlockTokens;
}

Status BailianParser::parse(std::string_view record, std::vector<ParsedRequest>& out) {
  DSV4RT_ASSIGN_OR_RETURN(const JsonDocument document, parse_json_record(record, errors_));
  const JsonFields fields(document.root(), errors_);
  constexpr std::int64_t kMaxChat = std::numeric_limits<std::int64_t>::max();
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t chat, fields.integer("chat_id", 0, kMaxChat));
  std::int64_t parent = -1;
  if (fields.has("parent_chat_id")) {
    DSV4RT_ASSIGN_OR_RETURN(parent, fields.integer("parent_chat_id", -1, kMaxChat));
  }
  ParsedRequest parsed;
  Request& request = parsed.request;
  DSV4RT_ASSIGN_OR_RETURN(parsed.arrival, fields.time("timestamp", kMsPerSecond));
  DSV4RT_ASSIGN_OR_RETURN(request.input_tokens, fields.tokens("input_length"));
  DSV4RT_ASSIGN_OR_RETURN(request.output_tokens, fields.tokens("output_length"));
  DSV4RT_ASSIGN_OR_RETURN(request.block_ids, fields.ids("hash_ids"));
  request.block_tokens = info_.block_tokens;
  DSV4RT_RETURN_IF_ERROR(
      check_block_ids(request.block_ids.size(), request.input_tokens, info_.block_tokens, "hash_ids", errors_));
  // A parent that is not in the log (it began earlier) leaves the turn the first of its session.
  const auto before = session_of_chat_.find(parent);
  request.session = before == session_of_chat_.end() ? sessions_ : before->second;
  if (!session_of_chat_.emplace(chat, request.session).second) {
    return errors_.refuse_field(BadReason::kDuplicate, "chat_id", std::to_string(chat) + " again", "each chat_id once");
  }
  if (request.session == sessions_) ++sessions_;
  request.id = std::to_string(chat);
  out.push_back(std::move(parsed));
  return {};
}

}  // namespace dsv4rt::replay
