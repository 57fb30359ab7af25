// What preparing one step costs on the host: 256 sequences on the V4-Flash schedule.
//
//   steady_decode:         one token a sequence, blocks only where a sequence happens to need one
//   worst_case_decode:     every sequence needs a new block in every pool in the same step
//   worst_case_csa_decode: the worst that default block sizes allow: all CSA and index-key pools
//   worst_case_scattered:  worst_case_decode with free lists in the order that service leaves
//   shared_tails:          128 forked pairs decode at once, half of them must copy their last blocks
//   mixed_prefill:         255 decodes and one prefill chunk of 2,048 tokens, padded
//   rollback_worst_case:   what giving a worst-case step back costs
//
// The limit that the design sets for prepare_forward is 100 us for decode steps. Every run checks that its steps were
// valid: the counts of tokens, deltas and copies, and the manager's invariants at the end. What the prefix cache costs
// is in bench_prefix_cache.cpp.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "cache/cache_layout.h"
#include "cache/kv_cache_manager.h"
#include "cache/memory_plan.h"
#include "dsv4rt/model.h"
#include "prepare_timing.h"

namespace dsv4rt {
namespace {

constexpr std::int32_t kPrefillTokens = 2048;

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

BENCHMARK(steady_decode)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(worst_case_decode)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(worst_case_csa_decode)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(worst_case_scattered)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(shared_tails)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(mixed_prefill)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(rollback_worst_case)->UseManualTime()->Unit(benchmark::kMicrosecond);

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
