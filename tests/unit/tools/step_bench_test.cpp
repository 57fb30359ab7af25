#include "tools/lib/step_bench.h"

#include <vector>

#include <gtest/gtest.h>

#include "support/golden_case.h"

namespace dsv4rt::test {
namespace {

constexpr StepBenchOptions kFew{.steps = 2, .seed = 3, .fill = true};

TEST(StepBench, AContextUpToTheLastPositionIsMeasuredBeforeIt) {
  const GoldenCase golden = GoldenCase::open("tiny-bf16");
  EngineOptions engine_options = golden.options();
  const auto config = ModelConfig::from_file(engine_options.checkpoint / "config.json");
  ASSERT_OK(config);
  const std::int64_t positions = config->max_position_embeddings;
  std::vector<StepShape> shapes{{1, 40}, {1, positions}, {1, positions + 1}};
  leave_room_for_steps(shapes, kFew, positions);
  EXPECT_EQ(shapes[0].context_tokens, 40);
  EXPECT_LT(shapes[1].context_tokens, positions);
  EXPECT_EQ(shapes[2].context_tokens, positions + 1) << "refused by the engine, not measured as something else";
  shapes.pop_back();
  engine_options.limits = step_bench_limits(shapes, kFew);
  EXPECT_EQ(engine_options.limits.max_context_tokens, positions);
  engine_options.draft_budget_tokens = 1;
  const auto engine = make_engine(engine_options);
  for (const StepShape& shape : shapes) {
    const auto result = bench_steps(*engine, shape, kFew);
    ASSERT_OK(result);
    EXPECT_GT(result->eager_ms, 0.0);
  }
}

// In pools that hold no more than the shape's contexts and what is timed after them.
TEST(StepBench, SequencesOfSeveralLengthsAreMeasuredTogether) {
  const std::vector<StepShape> shapes{{.batch = 3, .context_tokens = 200, .shortest_tokens = 20},
                                      {.batch = 3, .context_tokens = 200}};
  std::vector<CacheLimits> limits;
  std::vector<std::int64_t> cache_bytes;
  for (const StepShape& shape : shapes) {
    EngineOptions engine_options = GoldenCase::open("tiny-bf16").options();
    limits.push_back(step_bench_limits({&shape, 1}, kFew));
    engine_options.limits = limits.back();
    engine_options.draft_budget_tokens = 1;
    const auto engine = make_engine(engine_options);
    const auto result = bench_steps(*engine, shape, kFew);
    ASSERT_OK(result);
    EXPECT_GT(result->eager_ms, 0.0);
    cache_bytes.push_back(result->cache_bytes);
  }
  EXPECT_EQ(limits[0].max_sequences, 3);
  EXPECT_EQ(limits[0].max_context_tokens, limits[1].max_context_tokens);
  const std::int64_t tokens_of_steps = limits[0].max_context_tokens - 200;
  EXPECT_GT(tokens_of_steps, 3 * kFew.steps);
  EXPECT_EQ(limits[0].pool_tokens, cached_tokens(shapes[0]) + 3 * tokens_of_steps);
  EXPECT_EQ(limits[1].pool_tokens, cached_tokens(shapes[1]) + 3 * tokens_of_steps);
  EXPECT_GT(cache_bytes[0], 0);
  EXPECT_LT(cache_bytes[0], cache_bytes[1]);
}

}  // namespace
}  // namespace dsv4rt::test
