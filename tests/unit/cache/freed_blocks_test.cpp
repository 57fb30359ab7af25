// Lesson 6: the manager tells which blocks became free, so that their bytes can be poisoned.
#include <set>

#include "cache_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::small_cache;
using testing_cache::TestCache;

class FreedBlocks : public testing::Test {
 protected:
  FreedBlocks() : cache_(small_cache(4, 2048, 8)) { cache_.manager->record_freed_blocks(); }

  using Blocks = std::set<std::pair<int, std::int32_t>>;  // pool, block

  [[nodiscard]] Blocks held(const std::vector<SequenceId>& sequences) const {
    Blocks held;
    for (int pool = 0; pool < 3; ++pool) {
      for (const SequenceId sequence : sequences) {
        for (const std::int32_t block : cache_.blocks(sequence, pool)) held.emplace(pool, block);
      }
    }
    return held;
  }
  // What `before` held and nobody of `live` holds now is reported, each block once.
  void expect_reported(const Blocks& before, const std::vector<SequenceId>& live) const {
    Blocks expected;
    const Blocks now = held(live);
    std::set_difference(before.begin(), before.end(), now.begin(), now.end(), std::inserter(expected, expected.end()));
    Blocks reported;
    for (const FreedBlock& freed : cache_.manager->freed_blocks()) reported.emplace(freed.pool, freed.block.value);
    EXPECT_EQ(reported, expected);
    EXPECT_EQ(reported.size(), cache_.manager->freed_blocks().size()) << "a block is reported twice";
  }

  TestCache cache_;
};

TEST_F(FreedBlocks, Lesson6ReleaseReportsWhatNobodyElseHolds) {
  const SequenceId parent = cache_.create();
  ASSERT_TRUE(cache_.append(parent, 700).ok());
  const SequenceId child = cache_.manager->fork(parent)->child;
  ASSERT_TRUE(cache_.append(child, 300).ok());  // copies the shared tails and takes blocks of its own
  Blocks before = held({parent, child});
  ASSERT_TRUE(cache_.manager->release(parent).ok());
  expect_reported(before, {child});
  EXPECT_FALSE(cache_.manager->freed_blocks().empty()) << "the parent's tails are its own by now";
  before = held({child});
  ASSERT_TRUE(cache_.manager->release(child).ok());
  expect_reported(before, {});
}

TEST_F(FreedBlocks, Lesson6TruncationReportsItsBlocks) {
  const SequenceId sequence = cache_.create();
  ASSERT_TRUE(cache_.append(sequence, 516).ok());
  Blocks before = held({sequence});
  ASSERT_TRUE(cache_.manager->truncate(sequence, 510).ok());
  expect_reported(before, {sequence});
  EXPECT_EQ(cache_.manager->freed_blocks().size(), 2U);  // the ninth CSA block and its index keys
  before = held({sequence});
  ASSERT_TRUE(cache_.manager->truncate(sequence, 0).ok());
  expect_reported(before, {sequence});
}

TEST_F(FreedBlocks, Lesson6RejectedTokensReportTheirBlocksAndUnstartedStepsNone) {
  const SequenceId sequence = cache_.create();
  ASSERT_TRUE(cache_.append(sequence, 508).ok());
  const StepPlan unstarted = *cache_.prepare({{sequence, 8}});
  ASSERT_TRUE(cache_.manager->rollback(unstarted.serial, StepProgress::kPrepared).ok());
  EXPECT_TRUE(cache_.manager->freed_blocks().empty()) << "nothing was written";
  const StepPlan step = *cache_.prepare({{sequence, 8}});
  const Blocks before = held({sequence});
  const std::int32_t accepted = 1;
  ASSERT_TRUE(cache_.manager->commit(step.serial, {&accepted, 1}).ok());
  expect_reported(before, {sequence});
  EXPECT_FALSE(cache_.manager->freed_blocks().empty());
}

TEST_F(FreedBlocks, Lesson6EveryReportIsOfTheLastCallOnly) {
  const SequenceId sequence = cache_.create();
  ASSERT_TRUE(cache_.append(sequence, 300).ok());
  ASSERT_TRUE(cache_.manager->truncate(sequence, 0).ok());
  EXPECT_FALSE(cache_.manager->freed_blocks().empty());
  EXPECT_FALSE(cache_.manager->truncate(sequence, 5).ok());
  EXPECT_TRUE(cache_.manager->freed_blocks().empty());
}

TEST(FreedBlocksUnasked, NothingIsRecorded) {
  TestCache cache = small_cache();
  const SequenceId sequence = cache.create();
  ASSERT_TRUE(cache.append(sequence, 300).ok());
  ASSERT_TRUE(cache.manager->release(sequence).ok());
  EXPECT_TRUE(cache.manager->freed_blocks().empty());
}

}  // namespace
}  // namespace dsv4rt
