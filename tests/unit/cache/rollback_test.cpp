// The end of a started step without its tokens: it cannot fail, and says who lost everything.
#include <vector>

#include <gtest/gtest.h>

#include "cache_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::expect_refused;
using testing_cache::small_cache;
using testing_cache::TestCache;

// The rings must still serve the old length: steps of up to draft budget + 1 tokens always go back.
TEST(Rollback, ShortStepsGoBackToTheirLengthAndKeepTheirReservation) {
  for (const std::int32_t length : {0, 1, 3, 63, 64, 127, 128, 130, 255, 256, 300}) {
    TestCache cache = small_cache(4, 2048, 4);
    const SequenceId sequence = cache.create(600);
    if (length > 0) {
      ASSERT_TRUE(cache.append(sequence, length).ok());
    }
    const auto blocks = cache.blocks(sequence, 0);
    const std::int64_t reserved = cache.manager->usage(0).reserved;
    const StepPlan step = *cache.prepare({{sequence, 5}});
    const auto emptied = cache.manager->rollback(step.serial, StepProgress::kStarted);
    ASSERT_TRUE(emptied.ok());
    EXPECT_TRUE(emptied->empty());
    EXPECT_EQ(*cache.manager->length(sequence), length);
    EXPECT_EQ(cache.blocks(sequence, 0), blocks);
    EXPECT_EQ(cache.manager->usage(0).reserved, reserved);
    EXPECT_TRUE(cache.manager->check_invariants().ok());
  }
}

// What a copy on write brought stays: the device's table already names the copy.
TEST(Rollback, CopiedBlocksStayTheSequencesOwn) {
  TestCache cache = small_cache(4, 2048, 8);
  const SequenceId parent = cache.create();
  ASSERT_TRUE(cache.append(parent, 100).ok());
  const SequenceId child = cache.manager->fork(parent)->child;
  const StepPlan step = *cache.prepare({{child, 8}});
  ASSERT_GT(step.counts.block_copies, 0);
  const std::vector<std::int32_t> during = cache.blocks(child, 0);
  ASSERT_TRUE(cache.manager->rollback(step.serial, StepProgress::kStarted).ok());
  EXPECT_EQ(*cache.manager->length(child), 100);
  EXPECT_EQ(cache.blocks(child, 0), during);
  EXPECT_NE(cache.blocks(child, 0), cache.blocks(parent, 0));
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

// A sequence with a reservation whose blocks a fork keeps, in pools that neighbours have filled: truncation to 0 is
// refused there, rolling back is not. Only the reservation of who is emptied goes.
TEST(Rollback, AFullPoolAForkAndAReservationCannotKeepAStepOutstanding) {
  TestCache cache = small_cache(4, 1024);
  cache.plan.pool_blocks = {1 + 16, 1 + 16, 1 + 4};  // 1,024 tokens
  cache.rebuild();
  const SequenceId reserved = cache.create(768);
  ASSERT_TRUE(cache.append(reserved, 512).ok());
  const SequenceId keeper = cache.manager->fork(reserved)->child;
  const SequenceId neighbour = cache.create(256);
  EXPECT_FALSE(cache.manager->can_admit(64).ok()) << "nothing may be left";
  const StepPlan step = *cache.prepare({{reserved, 200}});
  const auto emptied = cache.manager->rollback(step.serial, StepProgress::kStarted);
  ASSERT_TRUE(emptied.ok()) << emptied.status().to_string();
  EXPECT_EQ(std::vector<SequenceId>(emptied->begin(), emptied->end()), std::vector<SequenceId>{reserved});
  EXPECT_EQ(*cache.manager->length(reserved), 0);
  EXPECT_EQ(*cache.manager->earliest_truncation(reserved), 0);
  EXPECT_TRUE(cache.manager->check_invariants().ok());
  EXPECT_EQ(cache.manager->usage(0).reserved, 4) << "the neighbour's only";
  EXPECT_EQ(*cache.manager->length(keeper), 512);
  EXPECT_EQ(cache.blocks(keeper, 0).size(), 8U);
  ASSERT_TRUE(cache.append(neighbour, 256).ok()) << "its reservation holds";
  ASSERT_TRUE(cache.append(reserved, 64).ok());
  for (const SequenceId sequence : {reserved, keeper, neighbour}) ASSERT_TRUE(cache.manager->release(sequence).ok());
  for (int pool = 0; pool < 3; ++pool) {
    EXPECT_EQ(cache.manager->usage(pool).live, 0);
    EXPECT_EQ(cache.manager->usage(pool).reserved, 0);
  }
}

TEST(Rollback, NamesTheEmptiedInBatchOrderAndReportsTheirBlocks) {
  TestCache cache = small_cache(4, 2048, 3);
  cache.manager->record_freed_blocks();
  const SequenceId first = cache.create();
  const SequenceId decoding = cache.create();
  const SequenceId last = cache.create();
  for (const SequenceId sequence : {first, decoding, last}) ASSERT_TRUE(cache.append(sequence, 256).ok());
  const StepPlan step = *cache.prepare({{last, 200}, {decoding, 1}, {first, 100}});
  const std::int64_t live = cache.manager->usage(0).live;
  const auto emptied = cache.manager->rollback(step.serial, StepProgress::kStarted);
  ASSERT_TRUE(emptied.ok());
  EXPECT_EQ(std::vector<SequenceId>(emptied->begin(), emptied->end()), (std::vector<SequenceId>{last, first}));
  EXPECT_EQ(*cache.manager->length(decoding), 256);
  std::int64_t freed = 0;
  for (const FreedBlock& block : cache.manager->freed_blocks()) freed += block.pool == 0 ? 1 : 0;
  EXPECT_EQ(freed, live - cache.manager->usage(0).live);
  EXPECT_EQ(cache.manager->usage(0).live, 4);
  // The list outlives everything but the next rollback.
  ASSERT_TRUE(cache.append(first, 10).ok());
  EXPECT_EQ(emptied->size(), 2U);
}

TEST(Rollback, OnlyTheOutstandingStepIsAccepted) {
  TestCache cache = small_cache();
  const SequenceId sequence = cache.create();
  const StepPlan step = *cache.prepare({{sequence, 5}});
  for (const StepProgress progress : {StepProgress::kPrepared, StepProgress::kStarted}) {
    expect_refused(cache.manager->rollback(step.serial + 1, progress).status(), StatusCode::kFailedPrecondition,
                   {"rollback", "step " + std::to_string(step.serial) + " is"});
  }
  EXPECT_EQ(*cache.manager->length(sequence), 5);
  ASSERT_TRUE(cache.manager->rollback(step.serial, StepProgress::kStarted).ok());
  expect_refused(cache.manager->rollback(step.serial, StepProgress::kStarted).status(), StatusCode::kFailedPrecondition,
                 {"no step is"});
}

// What fork would do is told without doing it.
TEST(Rollback, CanForkAnswersWhatForkDoes) {
  TestCache cache = small_cache(2, 1024);
  const SequenceId parent = cache.create();
  ASSERT_TRUE(cache.append(parent, 100).ok());
  const auto before = cache.snapshot({parent});
  const ForkResult planned = *cache.manager->can_fork(parent);
  EXPECT_EQ(cache.snapshot({parent}), before);
  const ForkResult made = *cache.manager->fork(parent);
  EXPECT_EQ(made.child, planned.child);
  EXPECT_EQ(made.source, planned.source);
  EXPECT_EQ(made.target, planned.target);
  expect_refused(cache.manager->can_fork(parent).status(), StatusCode::kResourceExhausted, {"max_sequences"});
}

}  // namespace
}  // namespace dsv4rt
