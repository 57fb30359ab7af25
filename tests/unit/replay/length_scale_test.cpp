#include "replay/length_scale.h"

#include <limits>

#include <gtest/gtest.h>

#include "replay_fixture.h"

namespace dsv4rt::replay::test {
namespace {

Request with_blocks(std::int64_t input, std::int64_t output, std::int32_t block_tokens) {
  Request made = request(0, 0, input, output);
  made.block_tokens = block_tokens;
  for (std::int64_t first = 0; first < input; first += block_tokens) {
    made.block_ids.push_back(static_cast<std::uint64_t>(first));
  }
  return made;
}

TEST(LengthScale, BlocksAndLengthsShrinkAlike) {
  const Request scaled = scaled_lengths(with_blocks(1300, 90, 512), 0.125);
  EXPECT_EQ(scaled.block_tokens, 64);
  EXPECT_EQ(scaled.input_tokens, 162);  // 162.5: two whole blocks and the same part of the third
  EXPECT_EQ(scaled.output_tokens, 11);
  EXPECT_EQ(scaled.block_ids.size(), 3U);
  // What a log must keep, it keeps: ids for all but the last part of a block.
  EXPECT_GE(static_cast<std::int64_t>(scaled.block_ids.size()) * scaled.block_tokens,
            scaled.input_tokens - (scaled.block_tokens - 1));
}

TEST(LengthScale, AFactorThatLeavesNoWholeBlockIsRounded) {
  const Request scaled = scaled_lengths(with_blocks(1600, 100, 16), 0.1);
  EXPECT_EQ(scaled.block_tokens, 2);
  EXPECT_EQ(scaled.input_tokens, 200);  // an eighth, as the blocks
  EXPECT_EQ(scaled.output_tokens, 12);
  EXPECT_EQ(scaled_lengths(with_blocks(1600, 100, 16), 0.001).block_tokens, 1);
}

TEST(LengthScale, NothingVanishesAndNothingAppears) {
  Request scaled = scaled_lengths(request(0, 0, 3, 1), 0.1);
  EXPECT_EQ(scaled.input_tokens, 1);
  EXPECT_EQ(scaled.output_tokens, 1);
  scaled = scaled_lengths(request(0, 0, 1000, 0), 0.1);
  EXPECT_EQ(scaled.input_tokens, 100);
  EXPECT_EQ(scaled.output_tokens, 0);
  scaled = scaled_lengths(request(0, 0, -5, 7), 0.5);  // refused later, as it would be without
  EXPECT_EQ(scaled.input_tokens, -5);
}

TEST(LengthScale, ScaledReplaysFit) {
  ModelReplayOptions options = small_options();
  const Load load{.most_input = 30'000, .shared_prompts = 2};
  const auto whole = run_model(generate(load), options);
  ASSERT_OK(whole);
  EXPECT_GT(whole->metrics.requests().rejected_for[static_cast<std::size_t>(RejectReason::kTooLong)], 50);
  options.replay.length_scale = 0.125;
  const auto scaled = run_model(generate(load), options);
  ASSERT_OK(scaled);
  EXPECT_EQ(scaled->metrics.requests().rejected, 0);
  EXPECT_EQ(scaled->metrics.requests().finished, 100);
  for (const double factor : {0.0, -1.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    options.replay.length_scale = factor;
    EXPECT_TRUE(fails_with(run_model(generate(load), options), StatusCode::kInvalidArgument, {"scale_lengths"}));
  }
}

}  // namespace
}  // namespace dsv4rt::replay::test
