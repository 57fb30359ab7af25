#include "replay/session_history.h"

#include <algorithm>

#include "replay/block_identity.h"

namespace dsv4rt::replay {

void SessionHistory::append_run(std::uint64_t id, std::int64_t tokens) {
  std::int64_t offset = 0;
  while (offset < tokens) {
    const std::int64_t taken = std::min(tokens - offset, block_tokens_ - tail_tokens_);
    aligned_ = aligned_ && tail_tokens_ == 0 && offset == 0;
    if (aligned_) {
      tail_id_ = id;
    } else {
      const std::uint64_t piece = static_cast<std::uint64_t>(offset) << 20 | static_cast<std::uint64_t>(taken);
      tail_id_ = mix_ids(mix_ids(tail_id_, id), piece);
    }
    tail_tokens_ += taken;
    offset += taken;
    if (tail_tokens_ == block_tokens_) {
      full_blocks_.push_back(tail_id_);
      tail_tokens_ = 0;
    }
  }
}

void SessionHistory::append_blocks(std::span<const std::uint64_t> ids, std::int64_t tokens) {
  for (const std::uint64_t id : ids) {
    append_run(id, std::min<std::int64_t>(tokens, block_tokens_));
    tokens -= std::min<std::int64_t>(tokens, block_tokens_);
  }
  // A partial block at the end may have no id of its own: nobody can share it.
  if (tokens > 0) append_unique(mix_ids(tail_id_, full_blocks_.size()), tokens);
}

void SessionHistory::append_unique(std::uint64_t id, std::int64_t tokens) {
  append_run(id, tokens);
}

std::vector<std::uint64_t> SessionHistory::block_ids() const {
  std::vector<std::uint64_t> ids = full_blocks_;
  if (tail_tokens_ > 0) ids.push_back(tail_id_);
  return ids;
}

}  // namespace dsv4rt::replay
