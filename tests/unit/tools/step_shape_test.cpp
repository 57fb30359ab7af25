#include "tools/lib/step_shape.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/expect_ok.h"

namespace dsv4rt::test {
namespace {

TEST(StepShape, SequencesAreAlikeUnlessAShortestIsNamed) {
  const StepShape shape{.batch = 3, .context_tokens = 100};
  for (std::int32_t i = 0; i < shape.batch; ++i) EXPECT_EQ(context_of(shape, i), 100);
  EXPECT_EQ(cached_tokens(shape), 300);
  EXPECT_EQ(context_text(shape), "100");
}

TEST(StepShape, LengthsLieEvenlyBetweenTheShortestAndTheLongest) {
  for (const std::int32_t batch : {1, 2, 16, 32, 129}) {
    const StepShape shape{.batch = batch, .context_tokens = 16384, .shortest_tokens = 1024};
    std::vector<std::int64_t> lengths;
    std::int64_t all = 0;
    for (std::int32_t i = 0; i < batch; ++i) {
      lengths.push_back(context_of(shape, i));
      all += lengths.back();
    }
    EXPECT_EQ(lengths[0], 16384) << "the longest bounds what a step is captured for";
    EXPECT_EQ(cached_tokens(shape), all);
    if (batch > 2) {
      EXPECT_FALSE(std::is_sorted(lengths.begin() + 1, lengths.end())) << batch;
    }
    std::sort(lengths.begin(), lengths.end());
    EXPECT_GE(lengths.front(), 1024);
    EXPECT_EQ(lengths.back(), 16384);
    // In each quarter of the lengths, by powers of two, a quarter of the sequences, but for two.
    for (const std::int64_t from : {1024, 2048, 4096, 8192}) {
      const auto begin = std::lower_bound(lengths.begin(), lengths.end(), from);
      const auto count = std::lower_bound(begin, lengths.end(), 2 * from) - begin;
      EXPECT_NEAR(static_cast<double>(count), batch / 4.0, 2.0) << batch << " sequences from " << from;
    }
  }
  EXPECT_EQ(context_text({.batch = 2, .context_tokens = 16384, .shortest_tokens = 1024}), "1024..16384");
}

TEST(StepShape, LengthsStayBetweenTheirBounds) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  for (const auto& [shortest, longest] :
       {std::pair{kMost - 1, kMost}, std::pair{kMost, kMost}, std::pair{std::int64_t{1}, std::int64_t{1}},
        std::pair{std::int64_t{1}, kMost}}) {
    const StepShape shape{.batch = 300, .context_tokens = longest, .shortest_tokens = shortest};
    for (std::int32_t i = 0; i < shape.batch; ++i) {
      EXPECT_GE(context_of(shape, i), shortest);
      EXPECT_LE(context_of(shape, i), longest);
    }
  }
}

TEST(StepShape, ShapesThatNoStepHasAreRefusedByNumber) {
  EXPECT_OK(check_step_shape({.batch = 2, .context_tokens = 5, .shortest_tokens = 5}));
  const auto refused = [](const StepShape& shape, const std::string& text) {
    return fails_with(check_step_shape(shape), StatusCode::kInvalidArgument, {text});
  };
  EXPECT_TRUE(refused({.batch = 0}, "batch: 0"));
  EXPECT_TRUE(refused({.batch = (1 << 24) + 1}, "batch: 16777217; accepted: 1 to 16777216"));
  EXPECT_TRUE(refused({.batch = 1, .context_tokens = std::int64_t{1} << 31}, "context_tokens: 2147483648"));
  EXPECT_TRUE(refused({.batch = 1, .context_tokens = 0}, "context_tokens: 0"));
  EXPECT_TRUE(refused({.batch = 1, .context_tokens = 5, .shortest_tokens = 6}, "shortest_tokens: 6"));
  EXPECT_TRUE(refused({.batch = 1, .context_tokens = 5, .shortest_tokens = -1}, "shortest_tokens: -1"));
}

}  // namespace
}  // namespace dsv4rt::test
