#include "tools/lib/step_table_bench.h"

#include <gtest/gtest.h>

#include "replay/step_time_model.h"
#include "support/golden_case.h"

namespace dsv4rt::test {
namespace {

StepTableGrid small_grid() {
  StepTableGrid grid;
  grid.decode = {{.batch = 1, .context_tokens = 20}, {.batch = 3, .context_tokens = 40}};
  grid.prefill = {{.tokens = 8}, {.tokens = 24, .context_tokens = 40}};
  grid.steps = {.steps = 2, .seed = 1};
  grid.prefill_repeats = 1;
  return grid;
}

std::unique_ptr<Engine> engine_for(const StepTableGrid& grid) {
  EngineOptions options = GoldenCase::open("tiny-bf16").options();
  options.limits = step_table_limits(grid);
  options.draft_budget_tokens = 1;
  return make_engine(options);
}

TEST(StepTableBench, MeasuresTheGridAndTheTableServesAReplay) {
  const StepTableGrid grid = small_grid();
  const auto engine = engine_for(grid);
  std::int64_t told = 0;
  auto table =
      measure_step_table(*engine, grid, [&](const replay::StepPoint& point, std::int64_t done, std::int64_t total) {
        EXPECT_GT(point.microseconds, 0);
        EXPECT_EQ(total, 4);
        told = done;
      });
  ASSERT_OK(table);
  EXPECT_EQ(told, 4);
  ASSERT_EQ(table->points.size(), 4U);
  EXPECT_EQ(table->points[1].kind, replay::StepKind::kDecode);
  EXPECT_EQ(table->points[1].sequences, 3);
  EXPECT_EQ(table->points[1].context_tokens, 40);
  EXPECT_EQ(table->points[3].kind, replay::StepKind::kPrefill);
  EXPECT_EQ(table->points[2].context_tokens, 0);
  EXPECT_EQ(table->points[3].tokens, 24);
  EXPECT_EQ(table->points[3].context_tokens, 40);
  for (const replay::StepPoint& point : table->points) EXPECT_GT(point.microseconds, 0);
  table->provenance = {{"device", "this machine"}};
  const auto again = replay::StepTable::from_json(table->to_json(), "table");
  ASSERT_OK(again);
  EXPECT_OK(replay::StepTimeModel::create(*again));
  for (std::int32_t i = 0; i < 3; ++i) EXPECT_OK(engine->create_sequence());  // all was given back
}

TEST(StepTableBench, AGridWithoutDecodeOrPrefillIsRefused) {
  StepTableGrid grid = small_grid();
  const auto engine = engine_for(grid);
  grid.prefill.clear();
  EXPECT_TRUE(fails_with(measure_step_table(*engine, grid), StatusCode::kInvalidArgument, {"2 decode", "0 prefill"}));
}

TEST(StepTableBench, SequencesOfSeveralLengthsAreRefused) {
  StepTableGrid grid = StepTableGrid::for_gpu();
  EXPECT_OK(check_step_table_grid(grid));
  grid.decode.push_back({.batch = 4, .context_tokens = 60, .shortest_tokens = 20});
  EXPECT_TRUE(fails_with(check_step_table_grid(grid), StatusCode::kInvalidArgument, {"4 x 20..60", "one length"}));
}

TEST(StepTableBench, TheGridForGpusIsWhatATableNeeds) {
  const StepTableGrid grid = StepTableGrid::for_gpu();
  EXPECT_EQ(grid.decode.size(), 36U);
  EXPECT_EQ(grid.prefill.size(), 24U);
  const CacheLimits limits = step_table_limits(grid);
  EXPECT_EQ(limits.max_sequences, 256);
  EXPECT_EQ(limits.max_step_tokens, 8192);
  EXPECT_GE(limits.pool_tokens, 256 * 32768);
}

}  // namespace
}  // namespace dsv4rt::test
