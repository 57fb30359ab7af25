// Shapes of captured steps, and which graphs are kept.
#include "engine/graph_cache.h"

#include <gtest/gtest.h>

#include "engine/step_shape.h"

namespace dsv4rt {
namespace {

TEST(StepShape, TokenBucketsHoldTheStepAndWasteLittle) {
  std::int32_t last = 0;
  for (std::int32_t tokens = 1; tokens <= 2048; ++tokens) {
    const std::int32_t bucket = token_bucket(tokens);
    ASSERT_GE(bucket, tokens);
    ASSERT_GE(bucket, last);
    ASSERT_EQ(token_bucket(bucket), bucket) << "a bucket is its own bucket";
    if (tokens >= 33) {
      ASSERT_LE(4 * (bucket - tokens), tokens);
    }
    last = bucket;
  }
  EXPECT_EQ(token_bucket(1), 1);
  EXPECT_EQ(token_bucket(3), 4);
  EXPECT_EQ(token_bucket(5), 8);
  EXPECT_EQ(token_bucket(65), 80);
  EXPECT_EQ(token_bucket(257), 320);
}

TEST(StepShape, ContextBucketsArePowersOfTwo) {
  EXPECT_EQ(context_bucket(0), 4096);
  EXPECT_EQ(context_bucket(4096), 4096);
  EXPECT_EQ(context_bucket(4097), 8192);
  EXPECT_EQ(context_bucket(1048576), 1048576);
  EXPECT_EQ(context_bucket(INT32_MAX), INT32_MAX);
}

class CountedWork final : public CapturedWork {
 public:
  explicit CountedWork(int& live) : live_(live) { ++live_; }
  ~CountedWork() override { --live_; }

 private:
  int& live_;
};

GraphKey key(std::int32_t tokens) {
  return {.tokens = tokens, .longest_entry = 1, .context_end = 4096, .input = nullptr, .hook = 0};
}

TEST(GraphCache, TheLeastRecentlyUsedGraphLeaves) {
  int live = 0;
  {
    GraphCache cache(2);
    EXPECT_EQ(cache.find(key(1)), nullptr);
    const CapturedWork* one = &cache.insert(key(1), std::make_unique<CountedWork>(live));
    cache.insert(key(2), std::make_unique<CountedWork>(live));
    EXPECT_EQ(cache.find(key(1)), one);  // now 2 is the oldest
    EXPECT_TRUE(cache.full());
    cache.insert(key(3), std::make_unique<CountedWork>(live));
    EXPECT_EQ(cache.find(key(2)), nullptr);
    EXPECT_EQ(cache.find(key(1)), one);
    EXPECT_NE(cache.find(key(3)), nullptr);
    EXPECT_EQ(cache.evictions(), 1);
    EXPECT_EQ(cache.size(), 2U);
    EXPECT_EQ(live, 2);
  }
  EXPECT_EQ(live, 0);
}

TEST(GraphCache, EveryPartOfTheKeyCounts) {
  int live = 0;
  GraphCache cache(8);
  cache.insert(key(1), std::make_unique<CountedWork>(live));
  GraphKey other = key(1);
  other.hook = 1;
  EXPECT_EQ(cache.find(other), nullptr);
  other = key(1);
  other.input = &live;
  EXPECT_EQ(cache.find(other), nullptr);
  other = key(1);
  other.context_end = 8192;
  EXPECT_EQ(cache.find(other), nullptr);
  other = key(1);
  other.longest_entry = 2;
  EXPECT_EQ(cache.find(other), nullptr);
}

}  // namespace
}  // namespace dsv4rt
