#include "replay/cache_study.h"

#include <algorithm>

#include "base/try.h"
#include "replay/belady.h"
#include "replay/block_sequence.h"

namespace dsv4rt::replay {
namespace {

Result<std::vector<CapacityResult>> sorted_capacities(const CacheStudyOptions& options, std::int32_t block_tokens) {
  std::vector<CapacityResult> results;
  for (const std::int64_t tokens : options.capacities_tokens) {
    if (tokens <= 0) {
      return Status{StatusCode::kInvalidArgument,
                    "capacity of " + std::to_string(tokens) + " tokens; accepted: at least 1"};
    }
    CapacityResult result;
    result.capacity_tokens = tokens;
    result.capacity_blocks =
        tokens == kUnlimitedTokens ? kUnlimitedBlocks : tokens / std::max<std::int64_t>(1, block_tokens);
    results.push_back(result);
  }
  if (results.empty()) return Status{StatusCode::kInvalidArgument, "no capacity; accepted: at least one"};
  std::sort(results.begin(), results.end(),
            [](const CapacityResult& a, const CapacityResult& b) { return a.capacity_tokens < b.capacity_tokens; });
  return results;
}

}  // namespace

Result<CacheStudy> study_cache(RequestSource& source, const CacheStudyOptions& options,
                               const std::function<void(const SourceProgress&)>& on_request) {
  const bool identity = source.info().identity != PrefixIdentity::kNone;
  DSV4RT_ASSIGN_OR_RETURN(std::vector<CapacityResult> results, sorted_capacities(options, source.info().block_tokens));
  std::vector<std::int64_t> capacities;
  for (const CapacityResult& result : results) capacities.push_back(result.capacity_blocks);
  LruCurve lru(capacities);
  BlockSequence sequence;
  CacheStudy study;
  while (options.limit < 0 || study.requests < options.limit) {
    DSV4RT_ASSIGN_OR_RETURN(const std::optional<Request> request, source.next());
    if (!request) {
      study.whole_log = true;
      break;
    }
    ++study.requests;
    study.input_tokens += request->input_tokens;
    study.output_tokens += request->output_tokens;
    if (identity) {
      if (request->block_ids.empty() && request->input_tokens > 0) ++study.requests_without_ids;
      lru.add(*request);
      if (options.policy == EvictionPolicy::kBelady) DSV4RT_RETURN_IF_ERROR(sequence.add(*request));
    }
    if (on_request) on_request(source.progress());
  }
  if (!identity) return study;
  const std::vector<HitCounters> counters = lru.counters();
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i].lru = counters[i];
    results[i].hits =
        options.policy == EvictionPolicy::kBelady ? belady_hits(sequence, results[i].capacity_blocks) : counters[i];
  }
  study.capacities = std::move(results);
  return study;
}

}  // namespace dsv4rt::replay
