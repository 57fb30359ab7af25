#include "tools/lib/step_bench.h"

#include <span>
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

// The pool holds no more than these contexts and what is timed after them.
TEST(StepBench, SequencesOfSeveralLengthsAreMeasuredTogether) {
  EngineOptions engine_options = GoldenCase::open("tiny-bf16").options();
  const std::vector<StepShape> shapes{{.batch = 3, .context_tokens = 200, .shortest_tokens = 20},
                                      {.batch = 3, .context_tokens = 200}};
  engine_options.limits = step_bench_limits(shapes, kFew);
  EXPECT_EQ(engine_options.limits.max_sequences, 3);
  EXPECT_EQ(step_bench_limits(std::span(shapes).first(1), kFew).pool_tokens - cached_tokens(shapes[0]),
            engine_options.limits.pool_tokens - cached_tokens(shapes[1]));
  engine_options.draft_budget_tokens = 1;
  const auto engine = make_engine(engine_options);
  const auto several = bench_steps(*engine, shapes[0], kFew);
  ASSERT_OK(several);
  const auto alike = bench_steps(*engine, shapes[1], kFew);
  ASSERT_OK(alike);
  EXPECT_GT(several->eager_ms, 0.0);
  EXPECT_LT(several->cache_bytes, alike->cache_bytes);
  EXPECT_GT(several->cache_bytes, 0);
}

}  // namespace
}  // namespace dsv4rt::test
