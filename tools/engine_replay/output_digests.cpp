#include "tools/engine_replay/output_digests.h"

#include <cstddef>

namespace dsv4rt {

Status OutputDigests::add(std::int64_t request, std::int64_t position, const Sha256::Digest& row) {
  const auto [entry, is_new] = answers_.try_emplace(request);
  Answer& answer = entry->second;
  if (is_new) answer.first_position = position;
  const std::int64_t next = answer.first_position + static_cast<std::int64_t>(answer.rows.size());
  if (position < answer.first_position || position > next) {
    return {StatusCode::kInternal, "replay: request " + std::to_string(request) + ": outputs at position " +
                                       std::to_string(position) + " after those before " + std::to_string(next)};
  }
  if (position == next) {
    answer.rows.push_back(row);
    return {};
  }
  if (answer.rows[static_cast<std::size_t>(position - answer.first_position)] != row) {
    return {StatusCode::kInternal, "replay: request " + std::to_string(request) + ": outputs at position " +
                                       std::to_string(position) + " are other bytes than before it was preempted"};
  }
  ++repeated_rows_;
  return {};
}

std::string OutputDigests::take(std::int64_t request) {
  const auto found = answers_.find(request);
  if (found == answers_.end()) return {};
  Sha256 sha256;
  for (const Sha256::Digest& row : found->second.rows) sha256.update(row);
  answers_.erase(found);
  return hex_text(sha256.finish());
}

}  // namespace dsv4rt
