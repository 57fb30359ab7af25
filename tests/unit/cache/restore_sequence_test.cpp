// restore_sequence: a sequence that begins with content somebody else brings.
#include "cache_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::expect_refused;
using testing_cache::small_cache;
using testing_cache::TestCache;

constexpr std::int32_t kRestoreDraftBudget = 5;

// Lesson 1: at every boundary it holds what a sequence holds that was fed so many tokens.
TEST(RestoreSequence, Lesson1HoldsTheBlocksOfItsLength) {
  for (const std::int32_t length : {0, 1, 3, 4, 5, 7, 8, 127, 128, 129, 130, 255, 256, 257, 511, 512, 513, 2048}) {
    SCOPED_TRACE(length);
    TestCache cache = small_cache(3, 2048, kRestoreDraftBudget);
    const SequenceId fed = cache.create();
    for (std::int32_t left = length; left > 0; left -= 1024) {
      ASSERT_TRUE(cache.append(fed, std::min(left, 1024)).ok());
    }
    const SequenceId restored = *cache.manager->restore_sequence(length);
    EXPECT_EQ(*cache.manager->length(restored), length);
    for (int pool = 0; pool < 3; ++pool) {
      EXPECT_EQ(cache.blocks(restored, pool).size(), cache.blocks(fed, pool).size());
    }
    ASSERT_TRUE(cache.manager->check_invariants().ok()) << cache.manager->check_invariants().to_string();
    ASSERT_TRUE(cache.manager->release(fed).ok());
    ASSERT_TRUE(cache.manager->release(restored).ok());
    EXPECT_EQ(cache.manager->usage(0).live, 0);
    EXPECT_TRUE(cache.manager->check_invariants().ok());
  }
}

// Lesson 5: it is never cut to where its rings, which hold what `length` needs and no more, do not reach;
// a step of draft budget + 1 tokens can be rejected as a whole nevertheless.
TEST(RestoreSequence, Lesson5RollsBackOnlyWhatItsRingsServe) {
  for (std::int32_t length = 1; length <= 520; ++length) {
    TestCache cache = small_cache(2, 2048, kRestoreDraftBudget);
    const SequenceId restored = *cache.manager->restore_sequence(length);
    const std::int64_t earliest = *cache.manager->earliest_truncation(restored);
    ASSERT_LE(earliest, length);
    for (const SlotSpec& ring : cache.layout.slots()) {
      if (earliest > 0) {
        ASSERT_GE(first_needed_position(ring, earliest), first_needed_position(ring, length)) << length;
      }
      ASSERT_TRUE(earliest > 0 || first_needed_position(ring, length) == 0) << length;
    }
    const StepPlan step = *cache.prepare({{restored, kRestoreDraftBudget + 1}});
    const std::int32_t none = 0;
    ASSERT_TRUE(cache.manager->commit(step.serial, {&none, 1}).ok());
    ASSERT_EQ(*cache.manager->length(restored), length);
    ASSERT_TRUE(cache.manager->check_invariants().ok());
  }
}

// Lesson 13: it counts against reservations, and what it reserves itself is honoured.
TEST(RestoreSequence, Lesson13ReservesAndRespectsReservations) {
  TestCache cache = small_cache(3, 2048);
  cache.plan.pool_blocks = {41, 41, 11};
  cache.rebuild();
  const SequenceId restored = *cache.manager->restore_sequence(1000, 1500);
  const PoolUsage usage = cache.manager->usage(0);
  EXPECT_EQ(usage.live, 16);     // 250 rows in blocks of 16
  EXPECT_EQ(usage.reserved, 8);  // 375 rows need 24
  const auto before = cache.snapshot({restored});
  expect_refused(cache.manager->restore_sequence(1028).status(), StatusCode::kResourceExhausted,
                 {"restore_sequence needs 17 blocks", "CSA_KV"});
  EXPECT_EQ(cache.snapshot({restored}), before);
  ASSERT_TRUE(cache.manager->restore_sequence(1024).ok());
  ASSERT_TRUE(cache.append(restored, 500).ok()) << "reserved";
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

// In parts it is the sequence that it would be at once: blocks, what is left of its reservation, how far it can be cut.
TEST(RestoreSequence, ComesInParts) {
  for (const std::int32_t reserve : {0, 300, 1500}) {
    for (const std::int32_t first : {0, 1, 127, 128, 500, 999, 1000}) {
      SCOPED_TRACE(std::to_string(first) + " of 1000, reserve " + std::to_string(reserve));
      TestCache whole = small_cache(2, 2048, kRestoreDraftBudget);
      TestCache parts = small_cache(2, 2048, kRestoreDraftBudget);
      const SequenceId at_once = *whole.manager->restore_sequence(1000, reserve);
      const SequenceId grown = *parts.manager->restore_sequence(first, reserve);
      ASSERT_TRUE(parts.manager->extend_restored(grown, 1000).ok());
      ASSERT_TRUE(parts.manager->check_invariants().ok()) << parts.manager->check_invariants().to_string();
      EXPECT_EQ(*parts.manager->length(grown), 1000);
      EXPECT_EQ(*parts.manager->earliest_truncation(grown), *whole.manager->earliest_truncation(at_once));
      for (int pool = 0; pool < 3; ++pool) {
        EXPECT_EQ(parts.blocks(grown, pool).size(), whole.blocks(at_once, pool).size());
        EXPECT_EQ(parts.manager->usage(pool).reserved, whole.manager->usage(pool).reserved);
      }
      ASSERT_TRUE(parts.manager->release(grown).ok());
      EXPECT_EQ(parts.manager->usage(0).reserved, 0);
    }
  }
}

TEST(RestoreSequence, PartsThatAreRefusedChangeNothing) {
  TestCache cache = small_cache(3, 2048);
  cache.plan.pool_blocks = {41, 41, 11};
  cache.rebuild();
  const SequenceId other = *cache.manager->create_sequence(1500);
  const SequenceId restored = *cache.manager->restore_sequence(500);
  const auto before = cache.snapshot({restored, other});
  expect_refused(cache.manager->extend_restored(restored, 1100), StatusCode::kResourceExhausted,
                 {"extend_restored needs", "CSA_KV"});
  expect_refused(cache.manager->extend_restored(restored, 499), StatusCode::kInvalidArgument, {"length = 499", "500"});
  expect_refused(cache.manager->extend_restored(restored, 2049), StatusCode::kInvalidArgument, {"2048"});
  expect_refused(cache.manager->extend_restored({7, 7}, 600), StatusCode::kStaleHandle, {});
  EXPECT_EQ(cache.snapshot({restored, other}), before);
  const StepPlan step = *cache.prepare({{restored, 1}});
  expect_refused(cache.manager->extend_restored(restored, 600), StatusCode::kFailedPrecondition, {"outstanding"});
  ASSERT_TRUE(cache.manager->commit(step.serial).ok());
}

TEST(RestoreSequence, RefusalsNameFieldAndValue) {
  TestCache cache = small_cache(1, 2048);
  expect_refused(cache.manager->restore_sequence(2049).status(), StatusCode::kInvalidArgument,
                 {"length = 2049", "0 .. 2048"});
  expect_refused(cache.manager->restore_sequence(-1).status(), StatusCode::kInvalidArgument, {"length = -1"});
  expect_refused(cache.manager->restore_sequence(1, 2049).status(), StatusCode::kInvalidArgument, {"2049"});
  const SequenceId only = *cache.manager->restore_sequence(7);
  expect_refused(cache.manager->restore_sequence(7).status(), StatusCode::kResourceExhausted, {"max_sequences"});
  const StepPlan step = *cache.prepare({{only, 1}});
  expect_refused(cache.manager->restore_sequence(7).status(), StatusCode::kFailedPrecondition, {"outstanding"});
  ASSERT_TRUE(cache.manager->commit(step.serial).ok());
}

}  // namespace
}  // namespace dsv4rt
