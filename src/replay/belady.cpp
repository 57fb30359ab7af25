#include "replay/belady.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace dsv4rt::replay {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

// For every place in the sequence, the next place that asks for the same block.
std::vector<std::uint64_t> next_uses(const BlockSequence& sequence) {
  const auto blocks = sequence.blocks();
  std::vector<std::uint64_t> next(blocks.size());
  std::vector<std::uint64_t> latest(sequence.distinct_blocks(), kNever);
  for (std::size_t i = blocks.size(); i-- > 0;) next[i] = std::exchange(latest[blocks[i]], i);
  return next;
}

// The blocks that are kept. A block's next use is a place in the sequence, so of two blocks that the same request asks
// for next the earlier one in its prompt is needed sooner: the start of a prefix outlives its end.
class KeptBlocks {
 public:
  KeptBlocks(std::size_t distinct_blocks, std::int64_t capacity)
      : next_use_(distinct_blocks, kNever), capacity_(capacity) {}

  [[nodiscard]] bool holds(std::uint32_t block) const { return next_use_[block] != kNever; }

  void keep_until(std::uint32_t block, std::uint64_t next_use) {
    const bool held = holds(block);
    next_use_[block] = next_use;
    if (next_use != kNever) by_next_use_.emplace(next_use, block);
    live_ += static_cast<std::int64_t>(next_use != kNever) - static_cast<std::int64_t>(held);
  }

  // Lets those go that are asked for last.
  void trim() {
    while (live_ > capacity_) {
      const auto [next_use, block] = by_next_use_.top();
      by_next_use_.pop();
      if (next_use_[block] != next_use) continue;  // it has been asked for since
      next_use_[block] = kNever;
      --live_;
    }
  }

 private:
  std::vector<std::uint64_t> next_use_;  // kNever: not held
  std::priority_queue<std::pair<std::uint64_t, std::uint32_t>> by_next_use_;
  std::int64_t live_ = 0;
  std::int64_t capacity_;
};

}  // namespace

HitCounters belady_hits(const BlockSequence& sequence, std::int64_t capacity) {
  const std::vector<std::uint64_t> next = next_uses(sequence);
  KeptBlocks kept(sequence.distinct_blocks(), capacity);
  HitCounters counters;
  for (std::size_t i = 0; i < sequence.requests(); ++i) {
    const auto blocks = sequence.blocks_of(i);
    const auto miss =
        std::find_if_not(blocks.begin(), blocks.end(), [&](std::uint32_t block) { return kept.holds(block); });
    const std::int64_t run = miss - blocks.begin();
    const BlockSequence::RequestBlocks& request = sequence.request(i);
    counters.hit_blocks += run;
    counters.hit_requests += run > 0 ? 1 : 0;
    counters.hit_tokens += std::min(run * request.block_tokens, request.input_tokens);
    for (std::size_t k = 0; k < blocks.size(); ++k) kept.keep_until(blocks[k], next[request.begin + k]);
    kept.trim();
  }
  return counters;
}

}  // namespace dsv4rt::replay
