// Layers of the released models at full size: the CUDA engine against the CPU engine, and against itself
// however a sequence is cut into steps.
#include <gtest/gtest.h>

#include "support/engine_pair.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"

namespace dsv4rt::test {
namespace {

struct Shape {
  const char* name;
  SyntheticModel model;
  LinearPrecision precision = LinearPrecision::kExact;
};

// FP8 products that sum 128 inputs with about 14 bits, and outputs of attention rounded to E4M3: codes of cached rows
// and outputs move, as tools/lib/trace_check.h has it (TraceTolerance::fp8_precision).
constexpr PairTolerance kFp8Precision{
    .output = 6e-2, .step_output = 1e-1, .equal_values = 0.98, .state = 3e-6, .same_rows = 0.98};

class EngineShapesGpu : public testing::TestWithParam<Shape> {
 protected:
  static constexpr std::int64_t kContextTokens = 4096;

  [[nodiscard]] static EngineOptions options(std::int32_t sequences) {
    EngineOptions options = GetParam().model.options();
    options.limits = {
        .max_sequences = sequences, .max_context_tokens = kContextTokens, .max_step_tokens = 288, .pool_tokens = 0};
    options.draft_budget_tokens = 7;
    options.linear_precision = GetParam().precision;
    return options;
  }
};

TEST_P(EngineShapesGpu, MatchesTheCpu) {
  EnginePair pair(options(2), GetParam().precision == LinearPrecision::kExact ? PairTolerance() : kFp8Precision);
  // Computed from the start.
  PairedSequence sequence = pair.create();
  pair.feed(sequence, 150);
  pair.feed_to(sequence, 261, 100);
  pair.feed_to(sequence, 264, 1);
  ASSERT_FALSE(HasFatalFailure());
  pair.expect_close_caches(sequence);
  // Well past the window, with more rows than the indexer selects.
  PairedSequence longer = pair.create();
  pair.append_synthetic(longer, kContextTokens - 100);
  const PairedPart verify[] = {{&longer, 8, 5}, {&sequence, 1}};
  pair.step(verify, 4);
  pair.feed(longer, 33);
  pair.feed(longer, 1);
  ASSERT_FALSE(HasFatalFailure());
  pair.expect_close_caches(longer);
  pair.expect_close_caches(sequence);
  pair.expect_close_outputs();
}

// Chunks, decode steps, batches and padding: the same bytes.
TEST_P(EngineShapesGpu, AnyCutGivesTheSameBytes) {
  constexpr std::int64_t kTokens = 280;
  EngineOptions cuda = options(9);
  cuda.backend = "cuda";
  const auto engine = make_engine(cuda);
  const std::int64_t hidden = engine->config().hidden_size;
  SequenceFeeder feeder(*engine);
  FedSequence whole = feeder.create(random_rows(1, 1, kTokens, hidden));
  feeder.feed_to(whole, kTokens);
  const auto digests = feeder.digests(whole);
  for (const std::int64_t chunk : {1, 3, 16, 17, 64, 129}) {
    SCOPED_TRACE("chunks of " + std::to_string(chunk));
    FedSequence sequence = feeder.create(whole.inputs);
    feeder.feed_to(sequence, kTokens, chunk);
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_TRUE(sequence.outputs == whole.outputs);
    EXPECT_EQ(feeder.digests(sequence), digests);
    feeder.release(sequence);
  }
  // Other sequences in the same steps change nothing either.
  std::vector<FedSequence> company;
  for (std::uint64_t i = 0; i < 7; ++i) {
    company.push_back(feeder.create(random_rows(2 + i, 1, kTokens, hidden)));
    feeder.feed(company.back(), static_cast<std::int64_t>(1 + 30 * i));
  }
  FedSequence sequence = feeder.create(whole.inputs);
  feeder.feed_to(sequence, 200, 100);
  while (sequence.length < kTokens) {
    std::vector<FeedPart> parts;
    for (std::size_t i = 0; i < company.size(); ++i) {
      if (i == 3) parts.push_back({&sequence, 1});
      if (company[i].length + static_cast<std::int64_t>(i) < kTokens) {
        parts.push_back({&company[i], static_cast<std::int64_t>(1 + i % 2)});
      }
    }
    feeder.step(parts, 3);
    ASSERT_FALSE(HasFatalFailure());
  }
  EXPECT_TRUE(sequence.outputs == whole.outputs);
  EXPECT_EQ(feeder.digests(sequence), digests);
}

INSTANTIATE_TEST_SUITE_P(
    Layers, EngineShapesGpu,
    testing::Values(
        Shape{"FlashSlidingWindow", {.config = "deepseek-v4-flash", .first_layer = 0}},
        Shape{"FlashSparse", {.config = "deepseek-v4-flash", .first_layer = 2}},
        Shape{"FlashHeavilyCompressed", {.config = "deepseek-v4-flash", .first_layer = 3}},
        Shape{"ProHeavilyCompressed", {.config = "deepseek-v4-pro", .first_layer = 1}},
        Shape{"ProSparse", {.config = "deepseek-v4-pro", .first_layer = 2}},
        Shape{"FlashSlidingWindowFp8", {.config = "deepseek-v4-flash", .first_layer = 0}, LinearPrecision::kFp8},
        Shape{"FlashSparseFp8", {.config = "deepseek-v4-flash", .first_layer = 2}, LinearPrecision::kFp8},
        Shape{"ProHeavilyCompressedFp8", {.config = "deepseek-v4-pro", .first_layer = 1}, LinearPrecision::kFp8}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace dsv4rt::test
