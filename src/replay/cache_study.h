// What a prefix cache of given capacities would have served of a log: no clock, requests one after another.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "dsv4rt/status.h"
#include "replay/lru_curve.h"
#include "replay/request_source.h"

namespace dsv4rt::replay {

enum class EvictionPolicy : std::uint8_t {
  kLru,     // least recently used block first
  kBelady,  // the block that is asked for again last first: needs the future, so it is a bound
};

struct CacheStudyOptions {
  EvictionPolicy policy = EvictionPolicy::kLru;
  // Tokens each, kUnlimitedTokens for a cache that forgets nothing. A cache holds whole blocks only.
  std::vector<std::int64_t> capacities_tokens;
  std::int64_t limit = -1;  // requests to read; -1: all
};
inline constexpr std::int64_t kUnlimitedTokens = kUnlimitedBlocks;

struct CapacityResult {
  std::int64_t capacity_tokens = 0;
  std::int64_t capacity_blocks = 0;
  HitCounters hits;  // under the policy
  HitCounters lru;   // under LRU, for comparison; equal to `hits` under kLru
};

struct CacheStudy {
  // Over all requests that were read: for every capacity, input tokens = hit tokens + tokens to be computed.
  std::int64_t requests = 0;
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t requests_without_ids = 0;  // in a log that has ids: they hit nothing and fill nothing
  // Ascending by capacity; unset where the log does not say what prompts share: then no hit rate can be known.
  std::optional<std::vector<CapacityResult>> capacities;
  bool whole_log = false;  // the limit did not end the reading
};

// Reads `source` to its end or to the limit. `on_request` hears of every request. Fails as the source does;
// kInvalidArgument without capacities or for one that is not positive.
Result<CacheStudy> study_cache(RequestSource& source, const CacheStudyOptions& options,
                               const std::function<void(const SourceProgress&)>& on_request = {});

}  // namespace dsv4rt::replay
