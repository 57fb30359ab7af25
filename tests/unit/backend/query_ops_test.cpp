// rms_norm and query against double-precision references.
#include <gtest/gtest.h>

#include "unit/backend/ops_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

constexpr float kEps = 1e-6f;

TEST(RmsNorm, MatchesDoubleReferenceAtEveryWidth) {
  for (const int width : {1, 7, 16, 33, 512, 1024, 1536}) {
    const int tokens = 5;
    const auto x = random_bf16(static_cast<std::uint64_t>(width), static_cast<std::size_t>(tokens * width), 3.0f);
    const auto weight = random_bf16(9, static_cast<std::size_t>(width));
    std::vector<bf16> y(x.size());
    TestOps ops;
    ASSERT_TRUE(ops->rms_norm({tokens, width, x.data(), weight.data(), kEps, y.data()}).ok());
    for (int t = 0; t < tokens; ++t) {
      double sum = 0;
      for (int i = 0; i < width; ++i)
        sum += std::pow(static_cast<double>(to_float(x[static_cast<std::size_t>(t * width + i)])), 2);
      const double scale = 1.0 / std::sqrt(sum / width + static_cast<double>(kEps));
      for (int i = 0; i < width; ++i) {
        const auto at = static_cast<std::size_t>(t * width + i);
        const double expected = static_cast<double>(to_float(x[at])) * scale *
                                static_cast<double>(to_float(weight[static_cast<std::size_t>(i)]));
        EXPECT_TRUE(within_one_bf16_step(static_cast<double>(to_float(y[at])), bf16_of(expected)))
            << "width " << width << " token " << t << " value " << i;
      }
    }
    std::vector<bf16> in_place = x;
    ASSERT_TRUE(ops->rms_norm({tokens, width, in_place.data(), weight.data(), kEps, in_place.data()}).ok());
    EXPECT_TRUE(same_bytes(in_place, y));
  }
}

TEST(RmsNorm, ZeroInputGivesZero) {
  const std::vector<bf16> x(64);
  const auto weight = random_bf16(1, 64);
  std::vector<bf16> y = random_bf16(2, 64);
  TestOps ops;
  ASSERT_TRUE(ops->rms_norm({1, 64, x.data(), weight.data(), kEps, y.data()}).ok());
  for (const bf16 value : y) EXPECT_EQ(to_float(value), 0.0f);
}

// The reference rounds every step of the head norm to BF16; this follows it in double between roundings.
std::vector<double> reference_query_head(const bf16* head, const std::vector<float>& frequencies, int position) {
  double sum = 0;
  for (int i = 0; i < kHeadDim; ++i) sum += bf16_of(std::pow(static_cast<double>(to_float(head[i])), 2));
  const double scale = bf16_of(1.0 / std::sqrt(bf16_of(bf16_of(sum / kHeadDim) + static_cast<double>(kEps))));
  std::vector<double> values(kHeadDim);
  for (int i = 0; i < kHeadDim; ++i)
    values[static_cast<std::size_t>(i)] = bf16_of(static_cast<double>(to_float(head[i])) * scale);
  reference_rope(values, frequencies, position);
  return values;
}

TEST(Query, MatchesStepByStepReference) {
  const TestStep step({{0, 7, 2}, {3, 100000, 2}}, 1);
  const std::int32_t heads = 3;
  const auto q = random_bf16(5, static_cast<std::size_t>(step.tokens() * heads * kHeadDim), 2.0f);
  const auto frequencies = test_frequencies(160000.0);
  std::vector<bf16> out = q;
  TestOps ops;
  ASSERT_TRUE(ops->query({step.view(), heads, out.data(), kEps, {frequencies.data(), false}}).ok());
  for (int t = 0; t < 4; ++t) {
    for (int h = 0; h < heads; ++h) {
      const std::size_t base = static_cast<std::size_t>(t * heads + h) * kHeadDim;
      const auto expected = reference_query_head(q.data() + base, frequencies, step.view().token_position[t]);
      for (std::size_t i = 0; i < kHeadDim; ++i) {
        // Rotated pairs may cancel: the step there is that of the larger partner.
        EXPECT_NEAR(static_cast<double>(to_float(out[base + i])), expected[i], std::abs(expected[i]) * 0x1p-7 + 1e-5)
            << "token " << t << " head " << h << " value " << i;
      }
    }
  }
}

TEST(Query, IndependentOfThreadsAndOtherTokens) {
  const std::int32_t heads = 5;
  const TestStep step({{0, 0, 6}, {1, 50, 3}}, 2);
  const auto q = random_bf16(6, static_cast<std::size_t>(step.tokens() * heads * kHeadDim));
  const auto frequencies = test_frequencies();
  const RopeParams rope{frequencies.data(), false};
  std::vector<bf16> expected = q;
  TestOps one(1);
  ASSERT_TRUE(one->query({step.view(), heads, expected.data(), kEps, rope}).ok());
  for (const int threads : {2, 3, 7}) {
    std::vector<bf16> out = q;
    TestOps ops(threads);
    ASSERT_TRUE(ops->query({step.view(), heads, out.data(), kEps, rope}).ok());
    EXPECT_TRUE(same_bytes(out, expected)) << threads;
  }
  const TestStep alone({{1, 51, 1}});
  const std::size_t at = static_cast<std::size_t>(7 * heads) * kHeadDim;
  std::vector<bf16> out(q.begin() + static_cast<std::ptrdiff_t>(at),
                        q.begin() + static_cast<std::ptrdiff_t>(at + static_cast<std::size_t>(heads) * kHeadDim));
  ASSERT_TRUE(one->query({alone.view(), heads, out.data(), kEps, rope}).ok());
  EXPECT_EQ(std::memcmp(out.data(), expected.data() + at, out.size() * sizeof(bf16)), 0);
}

}  // namespace
}  // namespace dsv4rt
