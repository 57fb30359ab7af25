// Session files of WEKA's kv-cache-tester: recorded coding agents.
#pragma once

#include <cstdint>
#include <string>

#include "replay/json_fields.h"
#include "replay/record_parser.h"

namespace dsv4rt::replay {

// A session a record: `id`, `block_size`, `hash_id_scope` ("local": ids are the session's own) and `requests`, each
// with `t` s, `in`, `out`, `hash_ids` of full blocks only, `think_time` s since the end of the turn before. An entry of
// type "subagent" holds `requests` of an agent that ran beside it: a session of its own with the same ids; its times
// are relative to the entry where they are earlier than it. Entries without hash_ids share nothing.
class WekaParser : public RecordParser {
 public:
  WekaParser(const RequestLogOptions& options, RecordErrors& errors);

  Status parse(std::string_view record, std::vector<ParsedRequest>& out) override;
  [[nodiscard]] const SourceInfo& info() const override { return info_; }

 private:
  // Where the entries of one `requests` array belong.
  struct Place {
    std::string prefix;        // before field names
    std::string id;            // the session or agent
    std::int64_t session = 0;  // numbers turns that follow each other
    std::uint64_t scope = 0;   // within which ids mean the same
    Ticks begin = 0;           // a subagent's entry; 0 for the session itself
  };
  Status parse_requests(const JsonFields& holder, const Place& place, std::vector<ParsedRequest>& out);
  Status parse_request(const JsonFields& fields, const Place& place, bool first, std::vector<ParsedRequest>& out);

  RecordErrors& errors_;
  SourceInfo info_;
  std::int32_t asked_block_tokens_;
  std::uint64_t records_ = 0;
  std::int64_t sessions_ = 0;
};

}  // namespace dsv4rt::replay
