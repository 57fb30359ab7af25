// Prefix hits of an LRU cache of blocks, for many capacities in one pass.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "replay/request.h"

namespace dsv4rt::replay {

inline constexpr std::int64_t kUnlimitedBlocks = std::numeric_limits<std::int64_t>::max();

// What a cache of one capacity would have served.
struct HitCounters {
  std::int64_t hit_tokens = 0;
  std::int64_t hit_blocks = 0;
  std::int64_t hit_requests = 0;  // with at least one block
};

// Tokens of a prompt in its first `run` blocks: the last block may be partial.
std::int64_t run_tokens(const Request& request, std::int64_t run) noexcept;

// A hit is the longest leading run of a request's blocks that the cache holds. Then all its blocks are touched from the
// last to the first, so that the first is the most recent, and the least recent ones beyond the capacity leave. What a
// cache holds is thus the most recently touched `capacity` blocks: a block's depth in that order says which capacities
// hold it (Mattson et al. 1970). O(log n) a block; memory for the blocks of the largest capacity, twice.
class LruCurve {
 public:
  // Capacities in blocks, ascending, at least one; kUnlimitedBlocks is one of them or not.
  explicit LruCurve(std::vector<std::int64_t> capacities);

  // The next request of the log.
  void add(const Request& request);
  // One for each capacity.
  [[nodiscard]] std::vector<HitCounters> counters() const;
  // Distinct blocks that are remembered.
  [[nodiscard]] std::int64_t blocks() const noexcept { return static_cast<std::int64_t>(slot_of_.size()); }

 private:
  // 1 for the most recently touched block.
  std::optional<std::int64_t> depth(std::uint64_t id) const;
  void touch(std::uint64_t id);
  // Gives the live slots their ranks and makes room behind them; forgets what no capacity holds.
  void renumber();
  void count_slot(std::size_t slot, std::int32_t change);
  [[nodiscard]] std::int64_t live_up_to(std::size_t slot) const;

  std::vector<std::int64_t> capacities_;
  std::vector<HitCounters> gained_;  // at the smallest capacity that gains it
  std::unordered_map<std::uint64_t, std::size_t> slot_of_;
  std::vector<std::uint64_t> id_of_slot_;
  std::vector<bool> slot_live_;
  std::vector<std::int32_t> tree_;  // Fenwick tree over slots: 1 where a block was touched last
  std::size_t next_slot_ = 0;
  std::int64_t live_ = 0;
};

}  // namespace dsv4rt::replay
