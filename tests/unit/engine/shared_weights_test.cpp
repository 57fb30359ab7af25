// Engines that share weights compute what engines of their own do, and one may end before the other.
#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

class SharedWeights : public testing::Test {
 protected:
  SharedWeights() : golden_(GoldenCase::open("tiny-fp8")) {}

  [[nodiscard]] EngineOptions options() const {
    EngineOptions options = golden_.options();
    options.limits = {.max_sequences = 2, .max_context_tokens = 300, .max_step_tokens = 300, .pool_tokens = 0};
    return options;
  }
  // Outputs of 140 tokens in chunks, and the sequence as a snapshot.
  std::pair<LayerRows, std::vector<std::byte>> run(Engine& engine) const {
    SequenceFeeder feeder(engine);
    FedSequence sequence = feeder.create(golden_.inputs);
    feeder.feed_to(sequence, 140, 33);
    auto saved = engine.save_sequence(sequence.id);
    EXPECT_OK(saved);
    feeder.release(sequence);
    return {sequence.outputs, std::move(saved).value()};
  }

  GoldenCase golden_;
};

TEST_F(SharedWeights, ComputeTheSameInCachesOfTheirOwn) {
  const auto owner = make_engine(options());
  EngineOptions others = options();
  others.checkpoint.clear();
  others.limits.max_sequences = 3;
  others.csa_rows_per_block = 16;
  others.draft_budget_tokens = 4;
  others.poison_freed_blocks = true;
  auto sharing = owner->create_sharing(others);
  ASSERT_OK(sharing);
  const auto expected = run(*owner);
  EXPECT_EQ(run(**sharing), expected);
  EXPECT_EQ(run(*make_engine(options())), expected);
  EXPECT_EQ(owner->layers().size(), (*sharing)->layers().size());
  EXPECT_GT(owner->memory().weight_bytes, 0);
  EXPECT_EQ((*sharing)->memory().weight_bytes, 0);
  EXPECT_OK((*sharing)->restore_sequence(expected.second));
  // Sequences are one engine's own.
  const SequenceId mine = owner->create_sequence().value();
  EXPECT_TRUE(fails_with((*sharing)->release(mine), StatusCode::kStaleHandle, {"another engine"}));
}

TEST_F(SharedWeights, StayUntilTheLastEngineEnds) {
  auto first = make_engine(options());
  const auto expected = run(*first);
  auto second = first->create_sharing(options()).value();
  first.reset();
  EXPECT_EQ(run(*second), expected);
  auto third = second->create_sharing(options()).value();
  second.reset();
  EXPECT_EQ(run(*third), expected);
}

// Other formats are another cache of the same weights.
TEST_F(SharedWeights, OtherFormatsAreThoseOfAnEngineOfItsOwn) {
  EngineOptions bf16 = options();
  bf16.row_format = RowFormat::kBf16;
  bf16.index_format = IndexKeyFormat::kBf16;
  const auto owner = make_engine(options());
  EXPECT_EQ(run(*owner->create_sharing(bf16).value()), run(*make_engine(bf16)));
}

TEST_F(SharedWeights, OptionsThatMeanOtherWeightsAreRefused) {
  const auto owner = make_engine(options());
  const auto refused = [&](const std::function<void(EngineOptions&)>& change,
                           std::initializer_list<std::string_view> parts) {
    EngineOptions changed = options();
    change(changed);
    EXPECT_TRUE(fails_with(owner->create_sharing(changed), StatusCode::kInvalidArgument, parts));
  };
  refused([](auto& o) { o.checkpoint = "/elsewhere"; }, {"create_sharing: checkpoint", "/elsewhere", "none, or"});
  refused([](auto& o) { o.profile = "seed"; }, {"profile", "seed", "deepseek-v4"});
  refused([](auto& o) { o.backend = o.backend == "cpu" ? "cuda" : "cpu"; }, {"backend", "cuda", "cpu"});
  refused([](auto& o) { o.first_layer = 1; }, {"first_layer: 1; accepted: 0"});
  refused([](auto& o) { o.layer_count = 2; }, {"layer_count: 2; accepted: "});
  refused([](auto& o) { o.allow_non_finite_weights = true; }, {"allow_non_finite_weights: 1; accepted: 0"});
  refused([](auto& o) { o.linear_precision = LinearPrecision::kFp8; }, {"linear_precision: fp8; accepted: exact"});
  refused([](auto& o) { o.limits.max_sequences = 0; }, {"max_sequences"});
  EXPECT_OK(owner->create_sharing(options()));
}

}  // namespace
}  // namespace dsv4rt::test
