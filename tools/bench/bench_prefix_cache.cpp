// What the prefix cache costs on the host: 256 sequences on the V4-Flash schedule, and one of 64K tokens.
//
//   prefix_decode:      steady_decode with ids in every step
//   prefix_decode_full: the same when everything that is not live is cached: blocks are had by evicting
//   prefix_boundary:    all sequences reach a unit boundary in the same step
//   prefix_lookup_64k:  how much of 64K tokens is kept; hash_us of it is SHA-256, measured apart
//
// The limits: prepare_forward as without a prefix cache, 100 us; the lookup 300 us. Units enter the cache at commit,
// whose time is given apart (commit_p50_us, commit_p99_us).
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "cache/cache_layout.h"
#include "cache/kv_cache_manager.h"
#include "cache/memory_plan.h"
#include "cache/prefix_identity.h"
#include "dsv4rt/model.h"
#include "prepare_timing.h"

namespace dsv4rt {
namespace {

struct PrefixBench {
  std::unique_ptr<KVCacheManager> manager;
  std::vector<StepEntry> batch;
  std::vector<std::vector<std::int32_t>> ids;  // [sequence][context]
  std::vector<std::int64_t> lengths;

  void point_at_ids(std::int32_t tokens) {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      batch[i].tokens = tokens;
      batch[i].token_ids = ids[i].data() + lengths[i];
    }
  }
  void keep(std::int32_t tokens) {
    for (std::int64_t& length : lengths) length += tokens;
  }
};

constexpr std::int64_t kLookupTokens = 65536;

std::vector<std::int32_t> token_ids(std::int64_t count, std::int64_t seed) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<std::int32_t>((seed * 7919 + i * 31) % 129'000));
  }
  return ids;
}

// Runs the sequence's next tokens, untimed.
void feed(PrefixBench& bench, std::size_t i, std::int64_t tokens) {
  while (tokens > 0) {
    const std::int64_t now = std::min<std::int64_t>(tokens, 8192);
    const std::array<StepEntry, 1> one{{{.sequence = bench.batch[i].sequence,
                                         .tokens = static_cast<std::int32_t>(now),
                                         .token_ids = bench.ids[i].data() + bench.lengths[i]}}};
    require(bench.manager->commit(take(bench.manager->prepare_forward(one)).serial));
    bench.lengths[i] += now;
    tokens -= now;
  }
}

// Sequence i has the ids of seed i and has computed lengths(i) of them. One slot more than sequences.
template <class Lengths>
PrefixBench make_prefix_bench(std::int32_t sequences, std::int64_t context, std::int64_t pool_tokens, Lengths lengths) {
  const ModelConfig config = take(ModelConfig::from_file(DSV4RT_SOURCE_DIR "/configs/deepseek-v4-flash.json"));
  const LayerSchedule schedule = take(LayerSchedule::create(config));
  const CacheLayout layout = take(CacheLayout::create(config, schedule, {}));
  const MemoryPlan plan = take(plan_memory(config, schedule, layout,
                                           {.max_sequences = sequences + 1,
                                            .max_context_tokens = context,
                                            .max_step_tokens = kSequences * 128,
                                            .pool_tokens = pool_tokens,
                                            .boundary_states = 1024}));
  PrefixBench bench;
  bench.manager = take(KVCacheManager::create(schedule, layout, plan));
  for (std::int32_t i = 0; i < sequences; ++i) {
    bench.ids.push_back(token_ids(context, i));
    bench.batch.push_back({.sequence = take(bench.manager->create_sequence(bench.ids.back(), {})).sequence});
    bench.lengths.push_back(0);
    feed(bench, static_cast<std::size_t>(i), lengths(i));
  }
  return bench;
}

// Decode steps with ids, prepare and commit timed; `between` runs untimed after each.
template <class Between>
void decode_with_prefixes(benchmark::State& state, PrefixBench& bench, Between&& between) {
  std::vector<double> commits;
  time_prepare(
      state,
      [&] {
        bench.point_at_ids(1);
        return bench.manager->prepare_forward(bench.batch);
      },
      [&](const StepPlan& plan) {
        require(plan.counts.valid_tokens == kSequences, "a token of every sequence");
        const auto start = std::chrono::steady_clock::now();
        const Status status = bench.manager->commit(plan.serial);
        commits.push_back(seconds_since(start));
        require(status);
        bench.keep(1);
        between();
      });
  std::sort(commits.begin(), commits.end());
  state.counters["commit_p50_us"] = 1e6 * commits[commits.size() / 2];
  state.counters["commit_p99_us"] = 1e6 * commits[commits.size() * 99 / 100];
  require(bench.manager->check_invariants());
  require(bench.manager->prefix_stats().sequences_detached == 0, "every token is kept");
}

bool near(const PrefixBench& bench, std::int64_t limit) {
  return *std::max_element(bench.lengths.begin(), bench.lengths.end()) + 128 > limit;
}

void prefix_decode(benchmark::State& state) {
  const auto make = [] {
    return make_prefix_bench(kSequences, kContextTokens, 0, [](std::int32_t i) { return 1 + 37 * i % 8000; });
  };
  PrefixBench bench = make();
  decode_with_prefixes(state, bench, [&] {
    if (near(bench, kContextTokens)) bench = make();
  });
}

// Everything that is not live is full of prompts that came once: every new block costs an eviction.
void prefix_decode_full(benchmark::State& state) {
  constexpr std::int64_t kLongest = 2048;
  std::int64_t evicted = 0;
  const auto make = [] {
    PrefixBench full = make_prefix_bench(kSequences, kContextTokens, kSequences * kLongest + 65536,
                                         [](std::int32_t i) { return 1 + 7 * i; });
    for (std::int64_t i = 0; full.manager->usage(0).free > 32; ++i) {
      require(i < 1000, "the pools fill up");
      full.ids.push_back(token_ids(8192, 1000 + i));
      full.batch.push_back({.sequence = take(full.manager->create_sequence(full.ids.back(), {})).sequence});
      full.lengths.push_back(0);
      feed(full, kSequences, 8192);
      require(full.manager->release(full.batch.back().sequence));
      full.ids.pop_back();
      full.batch.pop_back();
      full.lengths.pop_back();
    }
    return full;
  };
  PrefixBench bench = make();
  decode_with_prefixes(state, bench, [&] {
    evicted = std::max(evicted, bench.manager->prefix_stats().units_removed_for_space);
    if (near(bench, kLongest)) bench = make();
  });
  require(state.iterations() < 256 || evicted > 0, "blocks are had by evicting");
}

void prefix_boundary(benchmark::State& state) {
  const auto make = [] { return make_prefix_bench(kSequences, kContextTokens, 0, [](std::int32_t) { return 127; }); };
  PrefixBench bench = make();
  decode_with_prefixes(state, bench, [&] {
    require(bench.manager->prefix_stats().kept_units == bench.lengths[0] / 128 * kSequences, "a unit a sequence");
    if (near(bench, kContextTokens)) {
      bench = make();
      return;
    }
    for (std::size_t i = 0; i < bench.batch.size(); ++i) feed(bench, i, 127);
  });
}

void prefix_lookup_64k(benchmark::State& state) {
  PrefixBench bench = make_prefix_bench(1, kLookupTokens + 128, 0, [](std::int32_t) { return kLookupTokens + 1; });
  const std::span<const std::int32_t> ids(bench.ids[0].data(), static_cast<std::size_t>(kLookupTokens) + 1);
  const auto units = static_cast<std::size_t>(kLookupTokens / 128);
  PrefixHasher hasher({});
  std::vector<double> hashing;
  PrefixDigest all{};
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    const Result<PrefixLookup> found = bench.manager->prefix_lookup(ids, {});
    state.SetIterationTime(seconds_since(start));
    require(found.ok() && found->hit_tokens == kLookupTokens, "all of it is kept");
    const auto start_hashing = std::chrono::steady_clock::now();
    PrefixDigest digest = hasher.root({});
    for (std::size_t unit = 0; unit < units; ++unit) digest = hasher.unit(digest, ids.subspan(unit * 128, 128));
    hashing.push_back(seconds_since(start_hashing));
    require(all == PrefixDigest{} || all == digest, "the same digest every time");
    all = digest;
  }
  std::sort(hashing.begin(), hashing.end());
  state.counters["hash_us"] = 1e6 * hashing[hashing.size() / 2];
}

BENCHMARK(prefix_decode)->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(4000);
BENCHMARK(prefix_decode_full)->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(4000);
BENCHMARK(prefix_boundary)->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(400);
BENCHMARK(prefix_lookup_64k)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace dsv4rt
