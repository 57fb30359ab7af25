#include "tools/lib/layer_bench.h"

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "tools/lib/bench_check.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt::test {
namespace {

constexpr LayerBenchOptions kSmall{
    .prefill_tokens = 20, .prefill_repeats = 2, .context_tokens = 30, .decode_steps = 3, .batch = 1, .seed = 4};

EngineOptions bench_engine(const LayerBenchOptions& options) {
  EngineOptions engine = GoldenCase::open("tiny-bf16").options();
  engine.limits = bench_limits(options);
  return engine;
}

TEST(LayerBench, TimesEveryLayerAndChecksItsResult) {
  for (const std::int32_t batch : {1, 3}) {
    LayerBenchOptions options = kSmall;
    options.batch = batch;
    const auto engine = make_engine(bench_engine(options));
    const auto results = bench_layers(*engine, options);
    ASSERT_OK(results);
    ASSERT_EQ(results->size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ((*results)[i].layer, LayerId(static_cast<std::int32_t>(i)));
      EXPECT_GT((*results)[i].prefill_ms, 0.0);
      EXPECT_GT((*results)[i].decode_ms, 0.0);
    }
    // Every sequence was given back.
    for (std::int32_t i = 0; i < batch; ++i) EXPECT_OK(engine->create_sequence());
  }
}

TEST(LayerBench, LimitsCoverThePromptAndTheContext) {
  const CacheLimits limits = bench_limits(
      {.prefill_tokens = 100, .prefill_repeats = 1, .context_tokens = 10, .decode_steps = 5, .batch = 2, .seed = 0});
  EXPECT_EQ(limits.max_sequences, 2);
  EXPECT_EQ(limits.max_context_tokens, 100);
  EXPECT_EQ(limits.max_step_tokens, 100);
}

TEST(LayerBench, OptionsThatAreNotPositiveAreNamed) {
  const auto engine = make_engine(bench_engine(kSmall));
  const auto refused = [&](LayerBenchOptions options) { return bench_layers(*engine, options).status(); };
  LayerBenchOptions options = kSmall;
  options.batch = 0;
  EXPECT_TRUE(fails_with(refused(options), StatusCode::kInvalidArgument, {"batch", "0"}));
  options = kSmall;
  options.decode_steps = -3;
  EXPECT_TRUE(fails_with(refused(options), StatusCode::kInvalidArgument, {"decode_steps", "-3"}));
  options = kSmall;
  options.prefill_tokens = 0;
  EXPECT_TRUE(fails_with(refused(options), StatusCode::kInvalidArgument, {"prefill_tokens", "0"}));
}

// The CPU is exact whatever is asked of it.
TEST(LayerBench, NothingIsGivenUpOnTheCpu) {
  EngineOptions options = bench_engine(kSmall);
  const std::int64_t planned = make_engine(options)->memory().total_bytes;
  options.linear_precision = LinearPrecision::kNvfp4;
  const auto engine = make_engine(options);
  EXPECT_TRUE(EngineInspector(*engine).deterministic());
  EXPECT_EQ(engine->memory().total_bytes, planned);
  EXPECT_OK(bench_layers(*engine, kSmall));
}

TEST(BenchCheck, ComparesBytesOrValues) {
  const std::vector<bf16> ones(100, to_bf16(1.0F));
  std::vector<bf16> others = ones;
  EXPECT_EQ(relative_distance(ones, others), 0.0);
  EXPECT_TRUE(agree(0, true, 0.1));
  others[3] = to_bf16(1.5F);
  EXPECT_NEAR(relative_distance(ones, others), 0.05, 1e-12);
  EXPECT_FALSE(agree(0.05, true, 0.1));
  EXPECT_TRUE(agree(0.05, false, 0.1));
  EXPECT_FALSE(agree(0.15, false, 0.1));
  others[3] = {0x7fc0};  // NaN
  EXPECT_FALSE(agree(relative_distance(ones, others), false, 0.1));
  EXPECT_FALSE(agree(relative_distance(ones, std::span(ones).first(99)), false, 0.1));
}

// An engine made for less refuses, and the bench passes that on.
TEST(LayerBench, AnEngineThatIsTooSmallIsReported) {
  const auto engine = make_engine(bench_engine(kSmall));
  LayerBenchOptions larger = kSmall;
  larger.context_tokens = 500;
  EXPECT_FALSE(bench_layers(*engine, larger).ok());
}

}  // namespace
}  // namespace dsv4rt::test
