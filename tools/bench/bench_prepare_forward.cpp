// What preparing one step costs on the host: 256 sequences on the V4-Flash schedule.
//
//   steady_decode:         one token a sequence, blocks only where a sequence happens to need one
//   worst_case_decode:     every sequence needs a new block in every pool in the same step
//   worst_case_csa_decode: the worst that default block sizes allow: all CSA and index-key pools
//   worst_case_scattered:  worst_case_decode with free lists in the order that service leaves
//   shared_tails:          128 forked pairs decode at once, half of them must copy their last blocks
//   mixed_prefill:         255 decodes and one prefill chunk of 2,048 tokens, padded
//   rollback_worst_case:   what giving a worst-case step back costs
//   prefix_decode:         steady_decode with the prefix cache on and ids in every step
//   prefix_decode_full:    the same when everything that is not live is cached: blocks are had by evicting
//   prefix_boundary:       all sequences reach a unit boundary in the same step
//   prefix_lookup_64k:     how much of 64K tokens is kept; hash_us of it is SHA-256, measured apart
//
// The limit that the design sets for prepare_forward is 100 us for decode steps, for the lookup 300 us. With the prefix
// cache the time of commit, where units enter it, is given apart (commit_p50_us, commit_p99_us). Every run checks that
// its steps were valid: the counts of tokens, deltas and copies, and the manager's invariants at the end.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "cache/cache_layout.h"
#include "cache/kv_cache_manager.h"
#include "cache/memory_plan.h"
#include "cache/prefix_identity.h"
#include "dsv4rt/model.h"

namespace dsv4rt {
namespace {

constexpr std::int32_t kSequences = 256;
constexpr std::int32_t kPrefillTokens = 2048;
constexpr std::int64_t kContextTokens = 16384;

// Thrown and reported by main: a benchmark of wrong results is worth nothing.
template <class T>
T take(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().to_string());
  return std::move(*result);
}

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string("benchmark result is wrong: ") + what);
}

struct Cache {
  std::unique_ptr<KVCacheManager> manager;
  std::vector<StepEntry> batch;
  std::int32_t pools = 0;
};

// `sequences` empty sequences of the Flash schedule. csa_rows_per_block = 1 makes every 128th token
// start a new block in all pools at once.
Cache make_cache(std::int32_t csa_rows_per_block, std::int32_t sequences) {
  const ModelConfig config = take(ModelConfig::from_file(DSV4RT_SOURCE_DIR "/configs/deepseek-v4-flash.json"));
  const LayerSchedule schedule = take(LayerSchedule::create(config));
  CacheFormats formats;
  formats.csa_rows_per_block = csa_rows_per_block;
  const CacheLayout layout = take(CacheLayout::create(config, schedule, formats));
  const CacheLimits limits{.max_sequences = kSequences,
                           .max_context_tokens = kContextTokens,
                           .max_step_tokens = kSequences * 128,
                           .pool_tokens = 0};
  const MemoryPlan plan = take(plan_memory(config, schedule, layout, limits));
  Cache cache;
  cache.manager = take(KVCacheManager::create(schedule, layout, plan));
  cache.pools = static_cast<std::int32_t>(layout.pools().size());
  for (std::int32_t i = 0; i < sequences; ++i) {
    cache.batch.push_back({.sequence = take(cache.manager->create_sequence()), .tokens = 1});
  }
  return cache;
}

void append(Cache& cache, std::int32_t tokens) {
  std::vector<StepEntry> batch = cache.batch;
  for (StepEntry& entry : batch) entry.tokens = tokens;
  const StepPlan plan = take(cache.manager->prepare_forward(batch));
  require(cache.manager->commit(plan.serial));
}

void restart(Cache& cache) {
  for (const StepEntry& entry : cache.batch) require(cache.manager->truncate(entry.sequence, 0));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Only prepare_forward is timed; the rest of a round restores the situation it is measured in.
// The counters p50_us and p99_us tell the cost apart from what a busy machine adds to the mean.
template <class Prepare, class Finish>
void time_prepare(benchmark::State& state, Prepare&& prepare, Finish&& finish) {
  std::vector<double> seconds;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    Result<StepPlan> plan = prepare();
    seconds.push_back(seconds_since(start));
    state.SetIterationTime(seconds.back());
    finish(take(std::move(plan)));
  }
  std::sort(seconds.begin(), seconds.end());
  state.counters["p50_us"] = 1e6 * seconds[seconds.size() / 2];
  state.counters["p99_us"] = 1e6 * seconds[seconds.size() * 99 / 100];
}

void steady_decode(benchmark::State& state) {
  Cache cache = make_cache(64, kSequences);
  // Different lengths, as in service: block boundaries do not fall together.
  for (std::int32_t i = 0; i < kSequences; ++i) {
    const std::array<StepEntry, 1> one{{{cache.batch[static_cast<std::size_t>(i)].sequence, 1 + 37 * i % 8000}}};
    require(cache.manager->commit(take(cache.manager->prepare_forward(one)).serial));
  }
  std::int64_t steps = 0;
  time_prepare(
      state, [&] { return cache.manager->prepare_forward(cache.batch); },
      [&](const StepPlan& plan) {
        require(plan.counts.valid_tokens == kSequences && plan.counts.block_copies == 0, "steady step");
        require(cache.manager->commit(plan.serial));
        if (++steps % 8000 == 0) {  // keep within the context: start over
          restart(cache);
          append(cache, 1);
        }
      });
  require(cache.manager->check_invariants());
}

void worst_case_decode(benchmark::State& state) {
  Cache cache = make_cache(1, kSequences);
  append(cache, 127);  // the 128th token finishes the first row of every pool
  time_prepare(
      state, [&] { return cache.manager->prepare_forward(cache.batch); },
      [&](const StepPlan& plan) {
        require(plan.counts.table_deltas == kSequences * cache.pools, "every pool gives every sequence a block");
        require(cache.manager->rollback(plan.serial, StepProgress::kPrepared).status());
      });
  require(cache.manager->check_invariants());
}

void worst_case_csa_decode(benchmark::State& state) {
  Cache cache = make_cache(64, kSequences);
  append(cache, 3);  // the 4th token starts a block in every CSA and index-key pool
  time_prepare(
      state, [&] { return cache.manager->prepare_forward(cache.batch); },
      [&](const StepPlan& plan) {
        require(plan.counts.table_deltas > 0 && plan.counts.table_deltas % kSequences == 0, "a block per CSA pool");
        require(cache.manager->rollback(plan.serial, StepProgress::kPrepared).status());
      });
  require(cache.manager->check_invariants());
}

// The same with free lists in the order that a long service leaves: blocks far apart.
void worst_case_scattered(benchmark::State& state) {
  Cache cache = make_cache(1, kSequences);
  append(cache, 128);
  for (std::int32_t round = 0; round < 30; ++round) append(cache, 128);
  std::uint64_t random = 1;
  for (std::int32_t i = 0; i < kSequences; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    std::swap(cache.batch[static_cast<std::size_t>(i)], cache.batch[(random >> 33) % kSequences]);
  }
  restart(cache);
  append(cache, 127);
  time_prepare(
      state, [&] { return cache.manager->prepare_forward(cache.batch); },
      [&](const StepPlan& plan) {
        require(plan.counts.table_deltas == kSequences * cache.pools, "every pool gives every sequence a block");
        require(cache.manager->rollback(plan.serial, StepProgress::kPrepared).status());
      });
  require(cache.manager->check_invariants());
}

void shared_tails(benchmark::State& state) {
  Cache cache = make_cache(64, kSequences / 2);
  append(cache, 135);  // one row in every HCA pool, 33 in every CSA pool; the next token adds a CSA row
  for (std::int32_t i = 0; i < kSequences / 2; ++i) {
    const ForkResult fork = take(cache.manager->fork(cache.batch[static_cast<std::size_t>(i)].sequence));
    cache.batch.push_back({.sequence = fork.child, .tokens = 1});
  }
  time_prepare(
      state, [&] { return cache.manager->prepare_forward(cache.batch); },
      [&](const StepPlan& plan) {
        require(plan.counts.block_copies > 0 && plan.counts.block_copies == plan.counts.table_deltas, "copies");
        require(cache.manager->rollback(plan.serial, StepProgress::kPrepared).status());
      });
  require(cache.manager->check_invariants());
}

void mixed_prefill(benchmark::State& state) {
  Cache cache = make_cache(64, kSequences);
  append(cache, 100);
  cache.batch.back().tokens = kPrefillTokens;
  time_prepare(
      state, [&] { return cache.manager->prepare_forward(cache.batch, {.pad_to_tokens = 2560}); },
      [&](const StepPlan& plan) {
        require(plan.counts.valid_tokens == kSequences - 1 + kPrefillTokens && plan.counts.tokens == 2560, "mixed");
        require(cache.manager->rollback(plan.serial, StepProgress::kPrepared).status());
      });
  require(cache.manager->check_invariants());
}

void rollback_worst_case(benchmark::State& state) {
  Cache cache = make_cache(1, kSequences);
  append(cache, 127);
  for (auto _ : state) {
    const StepPlan plan = take(cache.manager->prepare_forward(cache.batch));
    const auto start = std::chrono::steady_clock::now();
    const Status status = cache.manager->rollback(plan.serial, StepProgress::kPrepared).status();
    state.SetIterationTime(seconds_since(start));
    require(status);
  }
  require(cache.manager->check_invariants());
}

// ---- With the prefix cache ----------------------------------------------------------------------

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
    for (std::int64_t i = 0; full.manager->usage(0).free > 32 || full.manager->usage(2).free > 32; ++i) {
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

BENCHMARK(steady_decode)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(worst_case_decode)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(worst_case_csa_decode)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(worst_case_scattered)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(shared_tails)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(mixed_prefill)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(rollback_worst_case)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(prefix_decode)->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(4000);
BENCHMARK(prefix_decode_full)->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(4000);
BENCHMARK(prefix_boundary)->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(400);
BENCHMARK(prefix_lookup_64k)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace dsv4rt

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  try {
    benchmark::RunSpecifiedBenchmarks();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_prepare_forward: %s\n", error.what());
    return 1;
  }
  return 0;
}
