// Bytes of weights that are planned from shapes or headers are those that engines hold.
#include "tools/lib/weight_plan.h"

#include <vector>

#include <gtest/gtest.h>

#include "support/synthetic_model.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt {
namespace {

class WeightPlan : public testing::TestWithParam<WeightEncoding> {};

TEST_P(WeightPlan, IsWhatAnEngineHolds) {
  for (const test::SyntheticModel& model :
       {test::SyntheticModel{.config = "tiny", .layer_count = 4, .encoding = GetParam()},
        test::SyntheticModel{.config = "tiny", .first_layer = 1, .encoding = GetParam(), .index_heads = 8}}) {
    EngineOptions options = model.options();
    options.threads = 1;
    options.limits = {.max_sequences = 1, .max_context_tokens = 256, .max_step_tokens = 16, .pool_tokens = 0};
    const auto engine = Engine::create(options);
    ASSERT_OK(engine);
    const std::vector<LayerSpec> specs((*engine)->layer_specs().begin(), (*engine)->layer_specs().end());

    const auto packed_bytes = packed_bytes_of("cpu");
    ASSERT_OK(packed_bytes);
    const auto stored = planned_weight_bytes(model.directory(), (*engine)->config(), specs, *packed_bytes);
    ASSERT_OK(stored);
    EXPECT_EQ(*stored, (*engine)->memory().weight_bytes);
    EXPECT_EQ(planned_weight_bytes((*engine)->config(), specs, GetParam(), *packed_bytes),
              (*engine)->memory().weight_bytes);
    std::int64_t held = 0;
    for (const LayerId layer : (*engine)->layers()) held += EngineInspector(**engine).layer_weight_bytes(layer);
    EXPECT_EQ(held, *stored);
  }
}

INSTANTIATE_TEST_SUITE_P(Encodings, WeightPlan,
                         testing::Values(WeightEncoding::kFp8Block128, WeightEncoding::kBf16, WeightEncoding::kNvfp4));

TEST(WeightPlanOfRanks, SharesOnlyHeadsAndGroups) {
  const auto config =
      ModelConfig::from_file(std::filesystem::path(DSV4RT_SOURCE_DIR) / "configs/deepseek-v4-flash.json");
  ASSERT_OK(config);
  const auto schedule = LayerSchedule::create(*config);
  ASSERT_OK(schedule);
  const auto packed_bytes = packed_bytes_of("cuda");
  ASSERT_OK(packed_bytes);
  EXPECT_EQ(packed_bytes_of("tpu").status().code(), StatusCode::kInvalidArgument);
  const auto bytes = [&](std::int32_t ranks) {
    return planned_weight_bytes(*config, schedule->layers(), WeightEncoding::kFp8Block128, *packed_bytes, ranks);
  };
  const std::int64_t shared = (bytes(1) - bytes(2)) * 2;  // each of two ranks has half of it
  EXPECT_EQ(bytes(8), bytes(1) - shared + shared / 8);
  EXPECT_GT(shared, bytes(1) / 2);
  EXPECT_LT(shared, bytes(1));
}

}  // namespace
}  // namespace dsv4rt
