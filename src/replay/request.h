// A recorded request, whatever log it came from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dsv4rt::replay {

// Lengths and times as the log has them. Content is known by ids at most: equal runs of block ids from the start mean
// equal tokens there.
struct Request {
  std::int64_t index = 0;  // 0-based position among the log's requests
  std::string id;          // the log's own name of it, or "line N"
  std::int64_t line = 0;   // 1-based line of the file, for messages
  // When it arrives, in milliseconds since the log's first request. Unset for a later turn of a session of which the
  // log gives only the delay; a later turn may have both.
  std::optional<double> arrival_ms;
  std::int64_t session = -1;  // turns of one session run one after another; -1: a request of its own
  double delay_ms = 0;        // for a later turn: from the end of the turn before to its arrival
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  // One id for each run of block_tokens prompt tokens; the last run may be shorter or missing. Empty: the log does not
  // say which prompts share content.
  std::vector<std::uint64_t> block_ids;
  std::int32_t block_tokens = 0;
  std::int32_t priority = 0;  // larger first; 0 unless the log says so
};

}  // namespace dsv4rt::replay
