// The memory plan: sums, floors, hostile numbers, and fitting into a given memory.
#include "cache/memory_plan.h"

#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "cache_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::config_with_ratios;
using testing_cache::model_config;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

struct Model {
  ModelConfig config;
  LayerSchedule schedule;
  CacheLayout layout;

  explicit Model(const ModelConfig& model, const CacheFormats& formats = {})
      : config(model),
        schedule(*LayerSchedule::create(model)),
        layout(*CacheLayout::create(model, schedule, formats)) {}
  [[nodiscard]] Result<MemoryPlan> plan(const CacheLimits& limits) const {
    return plan_memory(config, schedule, layout, limits);
  }
  [[nodiscard]] Result<MemoryPlan> fit(const CacheLimits& limits, std::int64_t memory, std::int64_t other = 0) const {
    return fit_memory(config, schedule, layout, limits, memory, other);
  }
};

CacheLimits limits(std::int32_t sequences, std::int64_t context, std::int32_t step, std::int64_t pool = 0) {
  return {.max_sequences = sequences, .max_context_tokens = context, .max_step_tokens = step, .pool_tokens = pool};
}

// Prefixes may hold more tokens than sequences can: the pool takes what memory there is, and no more.
TEST(MemoryPlan, APoolWithPrefixesFillsTheMemory) {
  const Model flash(model_config("deepseek-v4-flash"));
  CacheLimits with_prefixes = limits(2, 4096, 512);
  const std::int64_t memory = std::int64_t{2} << 30;
  EXPECT_EQ(flash.fit(with_prefixes, memory, 0)->limits.pool_tokens, 2 * 4096);
  with_prefixes.boundary_states = 16;
  const MemoryPlan plan = *flash.fit(with_prefixes, memory, 0);
  EXPECT_GT(plan.limits.pool_tokens, 100 * 4096);
  EXPECT_LE(plan.total_bytes, memory);
  EXPECT_EQ(plan.boundary_state_bytes, 16 * plan.bytes_per_boundary_state);
  CacheLimits more = plan.limits;
  ++more.pool_tokens;
  while (more.pool_tokens % 8192 != 0) ++more.pool_tokens;  // the next block of every pool
  EXPECT_GT(flash.plan(more)->total_bytes, memory);
}

TEST(MemoryPlan, TotalsAreTheSumOfWhatIsAllocated) {
  const Model flash(model_config("deepseek-v4-flash"));
  const MemoryPlan plan = *flash.plan(limits(4, 65536, 512));
  EXPECT_EQ(plan.limits.pool_tokens, 4 * 65536);
  ASSERT_EQ(plan.pool_blocks.size(), flash.layout.pools().size());
  std::int64_t bytes = plan.block_table_bytes + plan.step_metadata_bytes + 4 * flash.layout.bytes_per_sequence();
  std::int64_t table_entries = 0;
  for (std::size_t pool = 0; pool < plan.pool_blocks.size(); ++pool) {
    const PoolSpec& spec = flash.layout.pools()[pool];
    const std::int64_t full = 4 * 65536 / spec.ratio / spec.shape.rows;
    EXPECT_EQ(plan.pool_blocks[pool], 1 + full + 4);
    bytes += plan.pool_blocks[pool] * spec.shape.block_bytes;
    table_entries += 4 * (65536 / spec.ratio / spec.shape.rows);
  }
  EXPECT_EQ(plan.total_bytes, bytes);
  EXPECT_EQ(plan.block_table_bytes, 4 * table_entries);
  EXPECT_DOUBLE_EQ(plan.bytes_per_token, 3514.25);
  EXPECT_EQ(plan.bytes_per_sequence, flash.layout.bytes_per_sequence());
  EXPECT_EQ(plan.sharing_unit_tokens, 256);
}

TEST(MemoryPlan, RegionsHaveOneEntryPerRoleInRoleOrder) {
  const Model flash(model_config("deepseek-v4-flash"));
  const MemoryPlan plan = *flash.plan(limits(2, 4096, 64));
  ASSERT_EQ(plan.regions.size(), static_cast<std::size_t>(kCacheRoleCount));
  const std::vector<std::int32_t> layers = {43, 21, 21, 20, 21, 21, 20};
  double bytes_per_token = 0;
  std::int64_t bytes_per_sequence = 0;
  for (std::size_t role = 0; role < plan.regions.size(); ++role) {
    EXPECT_EQ(static_cast<std::size_t>(plan.regions[role].role), role);
    EXPECT_EQ(plan.regions[role].layers, layers[role]);
    bytes_per_token += plan.regions[role].bytes_per_token;
    bytes_per_sequence += plan.regions[role].bytes_per_sequence;
  }
  EXPECT_DOUBLE_EQ(bytes_per_token, 3514.25);
  EXPECT_EQ(bytes_per_sequence, plan.bytes_per_sequence);
  const Model window_only(config_with_ratios({0, 0}));
  const MemoryPlan small = *window_only.plan(limits(1, 100, 8));
  ASSERT_EQ(small.regions.size(), 1u);
  EXPECT_EQ(small.regions[0].blocks_per_layer, 0);
  EXPECT_TRUE(small.pool_blocks.empty());
}

// Formats: 1 Mi tokens take 3.43 GiB on Flash and 4.91 GiB on Pro, padding apart.
TEST(MemoryPlan, OneMebiTokens) {
  for (const auto& [name, gib] : {std::pair{"deepseek-v4-flash", 3.43}, {"deepseek-v4-pro", 4.91}}) {
    const Model model(model_config(name));
    EXPECT_NEAR(model.layout.bytes_per_token() * (1 << 20) / static_cast<double>(kGiB), gib, 0.005) << name;
  }
}

TEST(MemoryPlan, RefusesLimitsOutOfRange) {
  const Model model(config_with_ratios({4, 128}));
  for (const CacheLimits& bad :
       {limits(0, 100, 8), limits(-1, 100, 8), limits(1, 0, 8), limits(1, (1 << 20) + 1, 8), limits(1, 100, 0),
        limits(1, 100, 8, -1), limits(std::numeric_limits<std::int32_t>::max(), 100, 8),
        limits(1, std::numeric_limits<std::int64_t>::max(), 8),
        limits(1, 100, std::numeric_limits<std::int32_t>::max())}) {
    const Status status = model.plan(bad).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_NE(status.message().find("accepted"), std::string::npos) << status.message();
  }
}

// Lesson 17: numbers that overflow sums, block ids or counts are refused, not wrapped.
TEST(MemoryPlan, Lesson17HostileLimits) {
  ModelConfig config = config_with_ratios({4, 128});
  config.max_position_embeddings = std::numeric_limits<std::int64_t>::max();
  const Model model(config);
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  for (const CacheLimits& bad :
       {limits(1, 1000, 8, std::numeric_limits<std::int64_t>::max()), limits(kMost, 1000, 8), limits(kMost, kMost, 8),
        limits(1000, 1000, 8, std::int64_t{1} << 43), limits(kMost, 1, kMost)}) {
    EXPECT_EQ(model.plan(bad).status().code(), StatusCode::kInvalidArgument);
  }
  // Slots alone beyond 63 bits: a wide ring times very many sequences.
  const Model wide(config_with_ratios(std::vector<std::int32_t>(64, 0), 1 << 20));
  EXPECT_EQ(wide.plan(limits(kMost, 1, 1)).status().code(), StatusCode::kInvalidArgument);
}

// Lesson 13: every role must be able to hold one longest sequence, checked before anything starts.
TEST(MemoryPlan, Lesson13FloorCheckNamesRoleAndBlocks) {
  const Model model(config_with_ratios({4, 128}));
  const Status status = model.plan(limits(1, 65536, 64, 1000)).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  for (const char* part : {"CSA_KV", "layer 0", "256 blocks", "planned are 5", "pool_tokens = 1000"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status.message();
  }
}

TEST(MemoryPlan, FitTakesTheLargestPoolThatFits) {
  const Model flash(model_config("deepseek-v4-flash"));
  const CacheLimits wanted = limits(16, 1 << 20, 2048);
  const MemoryPlan plan = *flash.fit(wanted, 16 * kGiB, 2 * kGiB);
  EXPECT_LE(plan.total_bytes, 14 * kGiB);
  CacheLimits more = plan.limits;
  ++more.pool_tokens;
  const MemoryPlan next = *flash.plan(more);
  EXPECT_GT(next.total_bytes, 14 * kGiB);
  EXPECT_GT(plan.limits.pool_tokens, 1 << 20);
}

TEST(MemoryPlan, FitNeverPlansMoreThanTheSequencesCanHold) {
  const Model model(config_with_ratios({4, 128}));
  EXPECT_EQ(model.fit(limits(2, 1000, 64), 1000 * kGiB)->limits.pool_tokens, 2000);
}

TEST(MemoryPlan, FitSaysWhatDoesNotFit) {
  const Model flash(model_config("deepseek-v4-flash"));
  const Status status = flash.fit(limits(256, 1 << 20, 2048), 2 * kGiB, kGiB).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  for (const char* part : {"CSA_KV", "HCA_STATE", "other 1073741824", "2147483648"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status.message();
  }
  EXPECT_EQ(flash.fit(limits(1, 100, 8), 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(flash.fit(limits(1, 100, 8), kGiB, -1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(flash.fit(limits(0, 100, 8), kGiB).status().code(), StatusCode::kInvalidArgument);
}

// Exactly the worst step: all sequences copy a tail or start a block in every pool.
TEST(MemoryPlan, StepCapacityBoundsDeltasAndCopies) {
  const Model model(config_with_ratios({4, 128}));
  const StepCapacity capacity = *step_capacity(model.schedule, model.layout, limits(3, 100000, 8192));
  EXPECT_EQ(capacity.tokens, 8192);
  EXPECT_EQ(capacity.sequences, 3);
  EXPECT_EQ(capacity.ratio_classes, 2);
  EXPECT_EQ(capacity.block_copies, 3 * 3);
  EXPECT_EQ(capacity.table_deltas, 2 * (8189 / 256 + 6) + (8189 / 8192 + 6));
  // More sequences than tokens: only as many as tokens can be in a step.
  EXPECT_EQ(step_capacity(model.schedule, model.layout, limits(100, 1000, 5))->block_copies, 3 * 5);
}

}  // namespace
}  // namespace dsv4rt
