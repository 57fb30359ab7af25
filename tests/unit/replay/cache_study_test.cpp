// Hit rates against recorded figures, plain models of the same rules, and the bound that knows the future.
#include "replay/cache_study.h"

#include <algorithm>
#include <list>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "replay/belady.h"
#include "support/expect_ok.h"
#include "support/temp_directory.h"
#include "unit/replay/log_files.h"

namespace dsv4rt::replay {
namespace {

using dsv4rt::test::fails_with;
using test::read_log;
using test::shipped_log;

CacheStudy study(const std::string& log, std::vector<std::int64_t> capacities,
                 EvictionPolicy policy = EvictionPolicy::kLru) {
  auto source = open_request_log(log, {});
  EXPECT_OK(source);
  auto result = study_cache(**source, {.policy = policy, .capacities_tokens = std::move(capacities)});
  EXPECT_OK(result);
  return *result;
}

double hit_rate(const CacheStudy& study, std::size_t capacity) {
  return static_cast<double>(study.capacities->at(capacity).hits.hit_tokens) / static_cast<double>(study.input_tokens);
}

constexpr std::int64_t kMillion = 1'000'000;

struct Oracle {
  const char* log;
  std::int64_t input_tokens;
  std::vector<double> rates;  // at 1 M, 4 M, 16 M tokens and without limit
  double tolerance;
};

TEST(CacheStudy, HitRatesOfTheShippedLogs) {
  const std::vector<Oracle> oracles{
      {"mooncake_conversation_head1000.jsonl", 13'732'944, {0.0426, 0.1578, 0.2157, 0.2157}, 0.00005},
      {"mooncake_synthetic_head200.jsonl", 2'663'480, {0.0373, 0.0619, 0.0619, 0.0619}, 0.00005},
      {"weka_claudecode_trace_0021.json", 401'061, {0.910}, 0.0005},
      {"weka_claudecode_trace_0022.json", 271'839, {0.839}, 0.0005},
      {"weka_claudecode_trace_0026.json", 52'760, {0.617}, 0.0005}};
  for (const Oracle& oracle : oracles) {
    const CacheStudy result = study(shipped_log(oracle.log), {kUnlimitedTokens, 16 * kMillion, kMillion, 4 * kMillion});
    EXPECT_EQ(result.input_tokens, oracle.input_tokens) << oracle.log;
    for (std::size_t i = 0; i < oracle.rates.size(); ++i) {
      const std::size_t column = oracle.rates.size() == 1 ? 3 : i;
      EXPECT_NEAR(hit_rate(result, column), oracle.rates[i], oracle.tolerance) << oracle.log << " " << column;
    }
    EXPECT_EQ(result.capacities->at(0).capacity_tokens, kMillion);
    EXPECT_EQ(result.capacities->at(0).capacity_blocks, kMillion / (oracle.rates.size() == 1 ? 64 : 512));
  }
}

TEST(CacheStudy, CountersAddUpToTheLog) {
  for (const char* const name :
       {"mooncake_conversation_head1000.jsonl", "mooncake_synthetic_head200.jsonl", "weka_claudecode_trace_0021.json",
        "aiperf_sessions_format_sample.jsonl", "azure_llm_2023_code_head100.csv"}) {
    std::int64_t input_tokens = 0;
    std::int64_t output_tokens = 0;
    for (const Request& request : read_log(shipped_log(name)).requests) {
      input_tokens += request.input_tokens;
      output_tokens += request.output_tokens;
    }
    const CacheStudy result = study(shipped_log(name), {kMillion, kUnlimitedTokens});
    EXPECT_EQ(result.input_tokens, input_tokens) << name;
    EXPECT_EQ(result.output_tokens, output_tokens) << name;
    EXPECT_TRUE(result.whole_log);
    if (!result.capacities) continue;
    for (const CapacityResult& capacity : *result.capacities) {
      EXPECT_GE(capacity.hits.hit_tokens, 0);
      EXPECT_LE(capacity.hits.hit_tokens, input_tokens) << name;
      EXPECT_LE(capacity.hits.hit_requests, result.requests) << name;
    }
  }
}

TEST(CacheStudy, KnowingTheFutureIsNeverWorse) {
  std::vector<std::int64_t> capacities{512,      5'000,        50'000,        250'000,
                                       kMillion, 4 * kMillion, 16 * kMillion, kUnlimitedTokens};
  for (const char* const name :
       {"mooncake_conversation_head1000.jsonl", "mooncake_synthetic_head200.jsonl", "weka_claudecode_trace_0021.json",
        "weka_claudecode_trace_0022.json", "weka_claudecode_trace_0026.json", "aiperf_sessions_format_sample.jsonl"}) {
    const CacheStudy result = study(shipped_log(name), capacities, EvictionPolicy::kBelady);
    bool better_somewhere = false;
    for (const CapacityResult& capacity : *result.capacities) {
      EXPECT_GE(capacity.hits.hit_tokens, capacity.lru.hit_tokens) << name << " " << capacity.capacity_tokens;
      EXPECT_GE(capacity.hits.hit_blocks, capacity.lru.hit_blocks) << name << " " << capacity.capacity_tokens;
      better_somewhere = better_somewhere || capacity.hits.hit_tokens > capacity.lru.hit_tokens;
    }
    const HitCounters& unlimited = result.capacities->back().hits;
    EXPECT_EQ(unlimited.hit_tokens, result.capacities->back().lru.hit_tokens) << name;
    EXPECT_TRUE(better_somewhere || !std::string_view(name).starts_with("mooncake")) << name;
  }
}

TEST(CacheStudy, WithoutPrefixIdentityNoHitRateIsGiven) {
  const CacheStudy result = study(shipped_log("azure_llm_2023_code_head100.csv"), {kMillion});
  EXPECT_FALSE(result.capacities);
  EXPECT_EQ(result.requests, 100);
}

TEST(CacheStudy, TheLimitEndsTheReading) {
  auto source = open_request_log(shipped_log("mooncake_conversation_head1000.jsonl"), {});
  ASSERT_OK(source);
  std::int64_t heard = 0;
  const auto result = study_cache(**source, {.capacities_tokens = {kMillion}, .limit = 10},
                                  [&heard](const SourceProgress& progress) { heard = progress.requests; });
  ASSERT_OK(result);
  EXPECT_EQ(result->requests, 10);
  EXPECT_EQ(heard, 10);
  EXPECT_FALSE(result->whole_log);
}

TEST(CacheStudy, CapacitiesArePositive) {
  auto source = open_request_log(shipped_log("mooncake_conversation_head1000.jsonl"), {});
  ASSERT_OK(source);
  EXPECT_TRUE(fails_with(study_cache(**source, {.capacities_tokens = {}}), StatusCode::kInvalidArgument, {"capacity"}));
  EXPECT_TRUE(
      fails_with(study_cache(**source, {.capacities_tokens = {0}}), StatusCode::kInvalidArgument, {"0 tokens"}));
}

// The rules as written: a list in order of recency.
class PlainLru {
 public:
  explicit PlainLru(std::int64_t capacity) : capacity_(capacity) {}
  void add(const Request& request, HitCounters& counters) {
    std::int64_t run = 0;
    for (const std::uint64_t id : request.block_ids) {
      if (std::find(order_.begin(), order_.end(), id) == order_.end()) break;
      ++run;
    }
    counters.hit_blocks += run;
    counters.hit_tokens += std::min(run * request.block_tokens, request.input_tokens);
    counters.hit_requests += run > 0 ? 1 : 0;
    for (auto id = request.block_ids.rbegin(); id != request.block_ids.rend(); ++id) {
      order_.remove(*id);
      order_.push_front(*id);
      if (static_cast<std::int64_t>(order_.size()) > capacity_) order_.pop_back();
    }
  }

 private:
  std::int64_t capacity_;
  std::list<std::uint64_t> order_;
};

// Chained ids: a random walk down a tree, so that an id always has the same predecessor.
std::vector<Request> random_requests(std::mt19937& random, int count, int branches) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request;
    request.block_tokens = 4;
    std::uint64_t id = 1;
    const int blocks = static_cast<int>(random() % 7);
    for (int b = 0; b < blocks; ++b) {
      id = id * 8 + random() % static_cast<unsigned>(branches);
      request.block_ids.push_back(id);
    }
    request.input_tokens = blocks * 4 - (blocks > 0 ? static_cast<std::int64_t>(random() % 4) : 0);
    requests.push_back(request);
  }
  return requests;
}

TEST(LruCurve, EqualsAPlainListAtEveryCapacity) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const auto requests = random_requests(random, 400, 2 + round % 3);
    std::vector<std::int64_t> capacities{0, 1, 2, 3, 5, 8, 13, 40};
    if (round % 2 == 0) capacities.push_back(kUnlimitedBlocks);
    LruCurve curve(capacities);
    std::vector<HitCounters> plain(capacities.size());
    std::vector<PlainLru> caches;
    for (const std::int64_t capacity : capacities) caches.emplace_back(capacity);
    for (const Request& request : requests) {
      curve.add(request);
      for (std::size_t i = 0; i < caches.size(); ++i) caches[i].add(request, plain[i]);
    }
    const auto counters = curve.counters();
    for (std::size_t i = 0; i < capacities.size(); ++i) {
      EXPECT_EQ(counters[i].hit_tokens, plain[i].hit_tokens) << capacities[i];
      EXPECT_EQ(counters[i].hit_blocks, plain[i].hit_blocks) << capacities[i];
      EXPECT_EQ(counters[i].hit_requests, plain[i].hit_requests) << capacities[i];
    }
  }
}

TEST(LruCurve, RemembersNoMoreThanTheLargestCapacityNeeds) {
  LruCurve curve({10, 100});
  Request request;
  request.block_tokens = 1;
  for (std::uint64_t id = 0; id < 100'000; ++id) {
    request.block_ids.assign(1, id);
    request.input_tokens = 1;
    curve.add(request);
  }
  EXPECT_LE(curve.blocks(), 1100);
}

// Tries every choice of kept blocks: the most blocks that any policy can hit.
std::int64_t best_hits(const std::vector<Request>& requests, std::size_t next, const std::vector<std::uint64_t>& held,
                       std::size_t capacity,
                       std::map<std::pair<std::size_t, std::vector<std::uint64_t>>, std::int64_t>& known) {
  if (next == requests.size()) return 0;
  const auto key = std::make_pair(next, held);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  std::int64_t run = 0;
  std::vector<std::uint64_t> candidates = held;
  bool leading = true;
  for (const std::uint64_t id : requests[next].block_ids) {
    const bool holds = std::binary_search(held.begin(), held.end(), id);
    leading = leading && holds;
    run += leading ? 1 : 0;
    if (!holds) candidates.push_back(id);
  }
  std::sort(candidates.begin(), candidates.end());
  std::int64_t best = 0;
  for (std::uint32_t choice = 0; choice < (1U << candidates.size()); ++choice) {
    std::vector<std::uint64_t> kept;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if ((choice >> i & 1U) != 0) kept.push_back(candidates[i]);
    }
    if (kept.size() == std::min(capacity, candidates.size())) {
      best = std::max(best, best_hits(requests, next + 1, kept, capacity, known));
    }
  }
  return known[key] = run + best;
}

TEST(Belady, HitsAsManyBlocksAsAnyChoiceCould) {
  std::mt19937 random(11);
  int better_than_lru = 0;
  for (int round = 0; round < 60; ++round) {
    auto requests = random_requests(random, 9, 2);
    for (Request& request : requests) {
      request.block_ids.resize(std::min<std::size_t>(request.block_ids.size(), 4));
      request.input_tokens = static_cast<std::int64_t>(request.block_ids.size()) * 4;
    }
    BlockSequence sequence;
    for (const Request& request : requests) ASSERT_OK(sequence.add(request));
    for (const std::int64_t capacity : {1, 2, 3, 5}) {
      std::map<std::pair<std::size_t, std::vector<std::uint64_t>>, std::int64_t> known;
      const std::int64_t best = best_hits(requests, 0, {}, static_cast<std::size_t>(capacity), known);
      EXPECT_EQ(belady_hits(sequence, capacity).hit_blocks, best) << "round " << round << " capacity " << capacity;
      LruCurve lru({capacity});
      for (const Request& request : requests) lru.add(request);
      EXPECT_LE(lru.counters()[0].hit_blocks, best);
      better_than_lru += lru.counters()[0].hit_blocks < best ? 1 : 0;
    }
  }
  EXPECT_GT(better_than_lru, 0);
}

}  // namespace
}  // namespace dsv4rt::replay
