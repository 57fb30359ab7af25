// Mooncake's JSONL and what grew out of it: the session dialect of AIPerf and Dynamo, and the native log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "replay/arrival_order.h"
#include "replay/json_fields.h"
#include "replay/record_parser.h"
#include "replay/session_history.h"
#include "replay/session_names.h"

namespace dsv4rt::replay {

// A request a line: `timestamp` ms, `input_length`, `output_length`, `hash_ids`; optionally `session_id`, `delay` ms
// since the end of the session's turn before, `request_id`, `priority`, `block_size`; natively also `tokens` (token ids
// instead of hash_ids) and `salt` (prompts of different salts share nothing).
class MooncakeParser : public RecordParser {
 public:
  enum class Dialect : std::uint8_t { kMooncake, kAiperf, kNative };
  // `arrivals`: of the requests accepted so far.
  MooncakeParser(Dialect dialect, const RequestLogOptions& options, const ArrivalOrder& arrivals, RecordErrors& errors);

  Status parse(std::string_view record, std::vector<ParsedRequest>& out) override;
  [[nodiscard]] const SourceInfo& info() const override { return info_; }
  [[nodiscard]] bool lost() const override { return lost_; }

 private:
  // What is remembered of a session while its turns may be differences.
  struct Session {
    std::optional<bool> delta;  // unset before the second turn tells
    std::optional<std::uint64_t> first_id;
    std::int64_t tokens = 0;  // in all turns so far, answers included
    std::int64_t turns = 0;
    SessionHistory history;
  };

  Status parse_header(const JsonFields& fields);
  Status set_block_tokens(const JsonFields& fields, const char* key);
  Status read_block_ids(const JsonFields& fields, Request& request);
  Status read_times(const JsonFields& fields, bool later_turn, ParsedRequest& parsed);
  // Turns a logged difference into the whole prompt.
  Status add_history(Session& session, Request& request);

  Dialect dialect_;
  const ArrivalOrder& arrivals_;
  RecordErrors& errors_;
  SourceInfo info_;
  SessionTurns session_turns_;
  bool first_record_ = true;
  bool lost_ = false;
  bool first_request_ = true;
  bool block_tokens_fixed_ = false;  // the user or the log says it, not the format's habit
  SessionNames names_;
  std::vector<Session> sessions_;
  std::int64_t history_blocks_ = 0;
};

}  // namespace dsv4rt::replay
