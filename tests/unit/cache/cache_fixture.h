// Small caches for the tests of src/cache.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_layout.h"
#include "cache/kv_cache_manager.h"
#include "cache/memory_plan.h"
#include "dsv4rt/model.h"

namespace dsv4rt::testing_cache {

inline ModelConfig model_config(const std::string& name) {
  Result<ModelConfig> config = ModelConfig::from_file(std::string(DSV4RT_SOURCE_DIR "/configs/") + name + ".json");
  EXPECT_TRUE(config.ok()) << config.status().to_string();
  return std::move(*config);
}

// Only the fields that the cache reads.
inline ModelConfig config_with_ratios(std::vector<std::int32_t> ratios, std::int64_t window = 128) {
  ModelConfig config;
  config.num_hidden_layers = static_cast<std::int64_t>(ratios.size());
  config.compress_ratios = std::move(ratios);
  config.sliding_window = window;
  config.max_position_embeddings = 1 << 20;
  return config;
}

struct TestCache {
  ModelConfig config;
  LayerSchedule schedule;
  CacheLayout layout;
  MemoryPlan plan;
  std::unique_ptr<KVCacheManager> manager;

  // Recreates the manager after a change of `plan`.
  void rebuild() { manager = *KVCacheManager::create(schedule, layout, plan); }

  SequenceId create(std::int64_t reserve_tokens = 0) { return *manager->create_sequence(reserve_tokens); }
  // One step of one sequence, everything accepted.
  Status append(SequenceId sequence, std::int32_t tokens) {
    const std::vector<StepEntry> batch{{.sequence = sequence, .tokens = tokens}};
    Result<StepPlan> step = manager->prepare_forward(batch);
    return step.ok() ? manager->commit(step->serial) : step.status();
  }
  Result<StepPlan> prepare(const std::vector<StepEntry>& batch, std::int32_t pad_to_tokens = 0) {
    return manager->prepare_forward(batch, {.pad_to_tokens = pad_to_tokens});
  }
  [[nodiscard]] StepView view(const StepPlan& step) const {
    return step_view(step.metadata.data(), manager->step_offsets(), step.counts);
  }
  [[nodiscard]] std::vector<std::int32_t> blocks(SequenceId sequence, int pool) const {
    std::vector<std::int32_t> ids;
    const std::vector<BlockId> held = *manager->blocks(sequence, pool);
    for (const BlockId block : held) ids.push_back(block.value);
    return ids;
  }
  // Everything that a refused operation must leave alone.
  [[nodiscard]] std::vector<std::int64_t> snapshot(const std::vector<SequenceId>& sequences) const {
    std::vector<std::int64_t> state{manager->live_sequences()};
    for (int pool = 0; pool < static_cast<int>(layout.pools().size()); ++pool) {
      const PoolUsage usage = manager->usage(pool);
      state.insert(state.end(), {usage.total, usage.free, usage.live, usage.reserved});
      for (const SequenceId sequence : sequences) {
        for (const std::int32_t block : blocks(sequence, pool)) state.push_back(block);
      }
    }
    for (const SequenceId sequence : sequences) {
      state.push_back(*manager->length(sequence));
      state.push_back(*manager->earliest_truncation(sequence));
    }
    return state;
  }
};

inline TestCache make_cache(const ModelConfig& config, const CacheFormats& formats, const CacheLimits& limits) {
  TestCache cache;
  cache.config = config;
  cache.schedule = *LayerSchedule::create(config);
  Result<CacheLayout> layout = CacheLayout::create(config, cache.schedule, formats);
  EXPECT_TRUE(layout.ok()) << layout.status().to_string();
  cache.layout = *layout;
  Result<MemoryPlan> plan = plan_memory(config, cache.schedule, cache.layout, limits);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  cache.plan = *plan;
  cache.rebuild();
  return cache;
}

// One CSA and one HCA layer: pools 0 (CSA_KV), 1 (INDEX_K), 2 (HCA_KV).
inline TestCache small_cache(std::int32_t sequences = 4, std::int64_t context = 2048, std::int32_t draft_budget = 0) {
  CacheFormats formats;
  formats.csa_rows_per_block = 16;  // 64 tokens
  formats.hca_rows_per_block = 2;   // 256 tokens
  formats.draft_budget_tokens = draft_budget;
  return make_cache(config_with_ratios({4, 128}), formats,
                    {.max_sequences = sequences, .max_context_tokens = context, .max_step_tokens = 1024});
}

inline void expect_refused(const Status& status, StatusCode code, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status.to_string();
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in: " << status.message();
  }
}

}  // namespace dsv4rt::testing_cache
