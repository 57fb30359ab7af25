// The figures of `plan --prefix-states`, on the released models.
#include "tools/lib/prefix_costs.h"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "cache/memory_plan.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {
namespace {

MemoryPlan plan_of(const std::string& name, const CacheLimits& limits) {
  const ModelConfig config =
      ModelConfig::from_file(std::filesystem::path(DSV4RT_SOURCE_DIR) / "configs" / name).value();
  const LayerSchedule schedule = LayerSchedule::create(config).value();
  const CacheLayout layout = CacheLayout::create(config, schedule, CacheFormats{}).value();
  return plan_memory(config, schedule, layout, limits).value();
}

constexpr CacheLimits kLimits{
    .max_sequences = 4, .max_context_tokens = 65536, .max_step_tokens = 512, .pool_tokens = 0, .boundary_states = 10};

// docs/cache.md "Costs": 127 window rows a layer, four positions of the overlapping compressors, aligned.
TEST(PrefixCosts, ReleasedModelsCostWhatTheDocumentsSay) {
  const MemoryPlan flash = plan_of("deepseek-v4-flash.json", kLimits);
  EXPECT_EQ(flash.bytes_per_boundary_state, 4063488);
  EXPECT_NEAR(flash.bytes_per_token, 3514, 1);
  const MemoryPlan pro = plan_of("deepseek-v4-pro.json", kLimits);
  EXPECT_EQ(pro.bytes_per_boundary_state, 5773056);
  EXPECT_NEAR(pro.bytes_per_token, 5031, 1);
  const auto costs = prefix_interval_costs(flash, flash.total_bytes);
  ASSERT_EQ(costs.size(), 9U);
  EXPECT_EQ(costs[0].interval_tokens, 0);
  EXPECT_DOUBLE_EQ(costs[0].bytes_per_token, flash.bytes_per_token);
  EXPECT_EQ(costs[1].interval_tokens, 128);
  EXPECT_DOUBLE_EQ(costs[1].bytes_per_token, flash.bytes_per_token + 4063488.0 / 128);
  EXPECT_EQ(costs[5].interval_tokens, 2048);
  EXPECT_DOUBLE_EQ(costs[5].bytes_per_token, flash.bytes_per_token + 4063488.0 / 2048);
  EXPECT_EQ(costs[8].interval_tokens, 16384);
}

// What fits takes the budget and no more, and one unit beyond it does not fit.
TEST(PrefixCosts, TokensThatFitFillTheBudget) {
  const MemoryPlan plan = plan_of("deepseek-v4-flash.json", kLimits);
  std::int64_t paged_bytes = 0;
  for (const PlannedRegion& region : plan.regions) {
    if (region.bytes_per_token > 0) paged_bytes += region.total_bytes;
  }
  const std::int64_t fixed_bytes = plan.total_bytes - paged_bytes - plan.boundary_state_bytes;
  const std::int64_t cache_bytes = std::int64_t{20} << 30;
  for (const PrefixIntervalCost& cost : prefix_interval_costs(plan, cache_bytes)) {
    const auto tokens = static_cast<double>(cost.cached_tokens);
    double used = tokens * plan.bytes_per_token;
    if (cost.interval_tokens == 0) {
      EXPECT_EQ(cost.states, 10);
      used += static_cast<double>(plan.boundary_state_bytes);
    } else {
      EXPECT_EQ(cost.states, cost.cached_tokens / cost.interval_tokens);
      used += tokens / static_cast<double>(cost.interval_tokens) * static_cast<double>(plan.bytes_per_boundary_state);
    }
    const auto budget = static_cast<double>(cache_bytes - fixed_bytes);
    EXPECT_LE(used, budget) << cost.interval_tokens;
    EXPECT_GT(used + 2 * cost.bytes_per_token, budget) << cost.interval_tokens;
  }
}

TEST(PrefixCosts, NothingFitsIntoTooLittle) {
  const MemoryPlan plan = plan_of("deepseek-v4-flash.json", kLimits);
  for (const PrefixIntervalCost& cost : prefix_interval_costs(plan, 1000)) EXPECT_EQ(cost.cached_tokens, 0);
}

}  // namespace
}  // namespace dsv4rt::test
