// What the turns of a session that were logged as differences add up to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsv4rt::replay {

// The prompt of a later turn is everything before it (prompts and answers) and its own new tokens. Block boundaries of
// the sum are not those of the parts, so ids are made anew from the first block on that is no block of the log: a
// block's id depends on all content before its end. Equal beginnings of two sessions have equal ids, and a first turn
// keeps its own.
class SessionHistory {
 public:
  explicit SessionHistory(std::int32_t block_tokens) : block_tokens_(block_tokens) {}

  // Appends `tokens` tokens whose k-th run of block_tokens is named by ids[k].
  void append_blocks(std::span<const std::uint64_t> ids, std::int64_t tokens);
  // Appends `tokens` tokens that occur nowhere else (an answer); `id` names them.
  void append_unique(std::uint64_t id, std::int64_t tokens);

  [[nodiscard]] std::int64_t tokens() const noexcept {
    return static_cast<std::int64_t>(full_blocks_.size()) * block_tokens_ + tail_tokens_;
  }
  // Ids of all blocks, the partial one at the end included.
  [[nodiscard]] std::vector<std::uint64_t> block_ids() const;

 private:
  void append_run(std::uint64_t id, std::int64_t tokens);

  std::int32_t block_tokens_;
  std::vector<std::uint64_t> full_blocks_;
  std::uint64_t tail_id_ = 0;  // names all content so far
  std::int64_t tail_tokens_ = 0;
  bool aligned_ = true;  // so far blocks are those of the log
};

}  // namespace dsv4rt::replay
