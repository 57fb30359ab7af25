// Shapes of captured steps, and which graphs are kept.
#include "engine/graph_cache.h"

#include <gtest/gtest.h>

#include "backend/ops.h"
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
  EXPECT_EQ(token_bucket(32), 32);
  EXPECT_EQ(token_bucket(33), 33);
  EXPECT_EQ(token_bucket(34), 40);
  EXPECT_EQ(token_bucket(64), 64);
  EXPECT_EQ(token_bucket(65), 66);
  EXPECT_EQ(token_bucket(66), 66);
  EXPECT_EQ(token_bucket(67), 72);
  EXPECT_EQ(token_bucket(72), 72);
  EXPECT_EQ(token_bucket(73), 80);
  EXPECT_EQ(token_bucket(128), 128);
  EXPECT_EQ(token_bucket(129), 144);
  EXPECT_EQ(token_bucket(145), 160);
  EXPECT_EQ(token_bucket(257), 320);
}

// Rounded up, the bound must answer as the step does whether a ring keeps what the step's tokens read.
TEST(StepShape, EntryBucketsAreFewAndAgreeAboutRings) {
  EXPECT_EQ(entry_bucket(1, 0, 1), 1);
  EXPECT_EQ(entry_bucket(2, 0, 64), 2);
  EXPECT_EQ(entry_bucket(3, 0, 64), 4);
  EXPECT_EQ(entry_bucket(5, 4, 64), 5) << "a verification as wide as the draft budget allows";
  EXPECT_EQ(entry_bucket(3, 4, 64), 4);
  EXPECT_EQ(entry_bucket(6, 7, 64), 8);
  EXPECT_EQ(entry_bucket(97, 3, 112), 112) << "no more than there are rows";
  EXPECT_EQ(entry_bucket(0, 0, 0), 0) << "an empty step is refused elsewhere";
  for (std::int32_t draft = 0; draft <= 64; ++draft) {
    std::int32_t buckets = 0;
    std::int32_t last = 0;
    for (std::int32_t longest = 1; longest <= 512; ++longest) {
      const std::int32_t bucket = entry_bucket(longest, draft, 512);
      ASSERT_GE(bucket, longest);
      ASSERT_LE(bucket, 512);
      ASSERT_GE(bucket, last);
      ASSERT_EQ(entry_bucket(bucket, draft, 512), bucket) << "a bucket is its own bucket";
      buckets += bucket != last ? 1 : 0;
      last = bucket;
      StepHeader exact{};
      StepHeader rounded{};
      exact.longest_entry = longest;
      rounded.longest_entry = bucket;
      for (const std::int32_t needed : {1, 4, 8, 128}) {
        ASSERT_EQ(ring_keeps_needed_rows(needed + draft, needed, rounded),
                  ring_keeps_needed_rows(needed + draft, needed, exact))
            << longest << " tokens, " << draft << " drafts";
      }
    }
    ASSERT_LE(buckets, 11);
  }
}

TEST(StepShape, ContextBucketsArePowersOfTwoAndOneMore) {
  EXPECT_EQ(context_bucket(0), 4096);
  EXPECT_EQ(context_bucket(4096), 4096);
  EXPECT_EQ(context_bucket(4097), 8192);
  EXPECT_EQ(context_bucket(8192), 8192);
  EXPECT_EQ(context_bucket(8193), 10240);
  EXPECT_EQ(context_bucket(10240), 10240);
  EXPECT_EQ(context_bucket(10241), 16384);
  EXPECT_EQ(context_bucket(1048576), 1048576);
  EXPECT_EQ(context_bucket(INT32_MAX), INT32_MAX);
}

class CountedWork final : public CapturedWork {
 public:
  explicit CountedWork(int& live, std::int64_t nodes = 1) : live_(live) {
    ++live_;
    nodes_ = nodes;
  }
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
    EXPECT_FALSE(cache.has_room_for(CountedWork(live)));
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

// As many of the oldest leave as the new one needs room for; one that is larger than the limit stays alone.
TEST(GraphCache, GraphsLeaveBeforeTheirNodesPassTheLimitOfBytes) {
  int live = 0;
  GraphCache cache(64, 100 * kGraphNodeBytes);
  for (std::int32_t tokens = 1; tokens <= 4; ++tokens) {
    ASSERT_TRUE(cache.has_room_for(CountedWork(live, 25)));
    cache.insert(key(tokens), std::make_unique<CountedWork>(live, 25));
  }
  EXPECT_EQ(cache.bytes(), 100 * kGraphNodeBytes);
  EXPECT_EQ(live, 4);
  EXPECT_NE(cache.find(key(1)), nullptr);  // 2 is the oldest now

  EXPECT_FALSE(cache.has_room_for(CountedWork(live, 26)));
  cache.insert(key(5), std::make_unique<CountedWork>(live, 26));
  EXPECT_EQ(cache.find(key(2)), nullptr);
  EXPECT_EQ(cache.find(key(3)), nullptr);
  EXPECT_NE(cache.find(key(1)), nullptr);
  EXPECT_EQ(cache.bytes(), 76 * kGraphNodeBytes);
  EXPECT_EQ(cache.evictions(), 2);
  EXPECT_EQ(live, 3);

  cache.insert(key(6), std::make_unique<CountedWork>(live, 101));
  EXPECT_EQ(cache.size(), 1U);
  EXPECT_EQ(live, 1);
  EXPECT_NE(cache.find(key(6)), nullptr);
  EXPECT_FALSE(cache.has_room_for(CountedWork(live, 1)));
  cache.insert(key(7), std::make_unique<CountedWork>(live, 1));
  EXPECT_EQ(cache.find(key(6)), nullptr);
  EXPECT_EQ(cache.bytes(), kGraphNodeBytes);
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
