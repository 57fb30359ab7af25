// Small caches with a prefix cache, for the tests of src/cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cache_fixture.h"

namespace dsv4rt::testing_cache {

inline constexpr std::int32_t kUnit = 128;
inline constexpr PrefixPolicy kEveryUnit{.interval_tokens = 1};
inline constexpr PrefixPolicy kEndsOnly{.interval_tokens = 0};
inline constexpr PrefixPolicy kNoStates{
    .interval_tokens = 0, .prompt_end = false, .output_end = false, .fork_points = false};

// `count` token ids that differ from those of every other seed from the first one on.
inline std::vector<std::int32_t> token_ids(std::int64_t count, std::int32_t seed = 0) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(seed * 100'000 + i % 90'000));
  return ids;
}

inline std::span<const std::byte> salt(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

struct PrefixSetup {
  std::vector<std::int32_t> ratios{4, 128};
  std::int32_t csa_rows_per_block = 16;  // 64 tokens
  std::int32_t hca_rows_per_block = 4;   // 512 tokens
  std::int32_t draft_budget = 0;
  std::int32_t sequences = 4;
  std::int64_t context = 4096;
  std::int32_t step_tokens = 2048;
  std::int64_t pool_tokens = 0;
  std::int32_t states = 64;
  std::int64_t quota_tokens = 0;
  PrefixPolicy policy = kEveryUnit;
};

struct PrefixTestCache : TestCache {
  PrefixCacheSettings settings;

  void rebuild() { manager = *KVCacheManager::create(schedule, layout, plan, settings); }
  PrefixStart start(std::span<const std::int32_t> ids, const SequenceOptions& options = {}) {
    Result<PrefixStart> started = manager->create_sequence(ids, options);
    EXPECT_TRUE(started.ok()) << started.status().to_string();
    return *started;
  }
  // One step with ids; `accepted` of them stay, all by default.
  Status feed(SequenceId sequence, std::span<const std::int32_t> ids, std::optional<std::int32_t> accepted = {}) {
    const auto tokens = static_cast<std::int32_t>(ids.size());
    const std::vector<StepEntry> batch{{.sequence = sequence, .tokens = tokens, .token_ids = ids.data()}};
    Result<StepPlan> step = manager->prepare_forward(batch);
    if (!step.ok()) return step.status();
    captured.assign(manager->captures().begin(), manager->captures().end());
    const std::vector<std::int32_t> kept{accepted.value_or(tokens)};
    return manager->commit(step->serial, kept);
  }
  // The rest of `ids` from the sequence's length on, in steps of at most `chunk` tokens.
  void run(SequenceId sequence, std::span<const std::int32_t> ids, std::size_t chunk = 512) {
    auto done = static_cast<std::size_t>(*manager->length(sequence));
    for (; done < ids.size(); done = std::min(done + chunk, ids.size())) {
      const Status status = feed(sequence, ids.subspan(done, std::min(chunk, ids.size() - done)));
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    const Status status = manager->check_invariants();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  // Computes `ids` from what is kept of them, and ends the sequence.
  std::int64_t visit(std::span<const std::int32_t> ids, const SequenceOptions& options = {}) {
    const PrefixStart started = start(ids, options);
    run(started.sequence, ids);
    EXPECT_TRUE(manager->release(started.sequence).ok());
    return started.hit_tokens;
  }
  [[nodiscard]] std::int64_t hit(std::span<const std::int32_t> ids, std::span<const std::byte> of_salt = {}) const {
    return manager->prefix_lookup(ids, of_salt)->hit_tokens;
  }
  // Boundaries of these ids that have a state: lengths at which a longer prompt would begin.
  [[nodiscard]] std::vector<std::int64_t> kept_boundaries(std::span<const std::int32_t> ids) const {
    std::vector<std::int64_t> kept;
    for (std::size_t end = kUnit; end <= ids.size(); end += kUnit) {
      std::vector<std::int32_t> longer(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(end));
      longer.push_back(7);
      if (hit(longer) == static_cast<std::int64_t>(end)) kept.push_back(static_cast<std::int64_t>(end));
    }
    return kept;
  }
  [[nodiscard]] std::vector<std::int64_t> counts() const {
    std::vector<std::int64_t> counts;
    for (int pool = 0; pool < static_cast<int>(layout.pools().size()); ++pool) {
      const PoolUsage usage = manager->usage(pool);
      EXPECT_EQ(usage.free + usage.live + usage.cached + usage.pinned, usage.total);
      counts.insert(counts.end(), {usage.free, usage.live, usage.cached, usage.pinned, usage.reserved});
    }
    const PrefixStats stats = manager->prefix_stats();
    counts.insert(counts.end(), {manager->live_sequences(), stats.lookups, stats.hit_tokens, stats.missed_tokens,
                                 stats.units_stored, stats.states_taken, stats.states_removed, stats.kept_units,
                                 stats.kept_states, stats.pinned_units, stats.sequences_detached});
    return counts;
  }

  std::vector<PlannedCapture> captured;  // what the last step captured
};

inline PrefixTestCache prefix_cache(const PrefixSetup& setup = {}) {
  CacheFormats formats;
  formats.csa_rows_per_block = setup.csa_rows_per_block;
  formats.hca_rows_per_block = setup.hca_rows_per_block;
  formats.draft_budget_tokens = setup.draft_budget;
  PrefixTestCache cache{make_cache(config_with_ratios(setup.ratios), formats,
                                   {.max_sequences = setup.sequences,
                                    .max_context_tokens = setup.context,
                                    .max_step_tokens = setup.step_tokens,
                                    .pool_tokens = setup.pool_tokens,
                                    .boundary_states = setup.states}),
                        {},
                        {}};
  cache.settings.policy = setup.policy;
  cache.settings.tenant_quota_tokens = setup.quota_tokens;
  cache.settings.record_events = true;
  cache.rebuild();
  return cache;
}

}  // namespace dsv4rt::testing_cache
