#include "replay/native_log.h"

#include <nlohmann/json.hpp>

namespace dsv4rt::replay {

// Numbers are written in the fewest digits that read back as the same value.
std::string native_log_header(const SourceInfo& info) {
  nlohmann::ordered_json header{{"dsv4_trace", 1}};
  if (info.identity != PrefixIdentity::kNone) header["block_tokens"] = info.block_tokens;
  header["prefix_identity"] = prefix_identity_name(info.identity);
  header["session_turns"] = "full";
  header["arrivals_ordered"] = info.arrivals_ordered ? 1 : 0;
  header["lengths_estimated"] = info.lengths_estimated ? 1 : 0;
  header["source_format"] = info.format;
  return header.dump() + "\n";
}

std::string native_log_line(const Request& request, const SourceInfo& info) {
  nlohmann::ordered_json line;
  if (info.arrival_times && request.arrival_ms) line["timestamp"] = *request.arrival_ms;
  line["input_length"] = request.input_tokens;
  line["output_length"] = request.output_tokens;
  if (info.identity != PrefixIdentity::kNone) line["hash_ids"] = request.block_ids;
  if (request.session >= 0) line["session_id"] = request.session;
  if (request.delay_ms > 0) line["delay"] = request.delay_ms;
  if (request.priority != 0) line["priority"] = request.priority;
  if (request.id != "line " + std::to_string(request.line)) line["request_id"] = request.id;
  return line.dump() + "\n";
}

}  // namespace dsv4rt::replay
