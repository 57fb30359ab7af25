// Blocks that a fork shares: who copies, when, and who may write in place.
#include <vector>

#include <gtest/gtest.h>

#include "cache/kv_cache_manager.h"
#include "cache_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::small_cache;
using testing_cache::TestCache;

TEST(CopyOnWrite, ForkSharesBlocksAndCopiesOnWrite) {
  TestCache cache = small_cache();
  const SequenceId parent = cache.create();
  ASSERT_TRUE(cache.append(parent, 100).ok());  // 25 CSA rows: a full and a partial block
  const std::int64_t live = cache.manager->usage(0).live;
  const ForkResult fork = *cache.manager->fork(parent);
  EXPECT_EQ(cache.manager->usage(0).live, live);
  EXPECT_EQ(cache.blocks(parent, 0), cache.blocks(fork.child, 0));
  EXPECT_EQ(*cache.manager->length(fork.child), 100);

  // Three tokens finish no row: nothing to copy. The fourth does.
  ASSERT_TRUE(cache.append(fork.child, 3).ok());
  EXPECT_EQ(cache.blocks(parent, 0), cache.blocks(fork.child, 0));
  const StepPlan step = *cache.prepare({{fork.child, 1}});
  const StepView view = cache.view(step);
  ASSERT_EQ(view.counts.block_copies, 2);  // CSA rows and index keys; HCA has no row yet
  ASSERT_EQ(view.counts.table_deltas, 2);
  EXPECT_EQ(view.block_copies[0].table, 0);
  EXPECT_EQ(view.block_copies[0].source, cache.blocks(parent, 0)[1]);
  EXPECT_EQ(view.block_copies[0].target, cache.blocks(fork.child, 0)[1]);
  EXPECT_EQ(view.table_deltas[0].slot, fork.target.value);
  EXPECT_EQ(view.table_deltas[0].index, 1);
  EXPECT_EQ(view.table_deltas[0].block, view.block_copies[0].target);
  ASSERT_TRUE(cache.manager->commit(step.serial).ok());
  EXPECT_EQ(cache.blocks(parent, 0)[0], cache.blocks(fork.child, 0)[0]);
  EXPECT_NE(cache.blocks(parent, 0)[1], cache.blocks(fork.child, 0)[1]);

  // The parent is alone with its tail now and writes in place.
  const StepPlan parents = *cache.prepare({{parent, 4}});
  EXPECT_EQ(parents.counts.block_copies, 0);
  ASSERT_TRUE(cache.manager->commit(parents.serial).ok());
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

// Of k owners that write in one step, k - 1 copy and the last one writes in place.
TEST(CopyOnWrite, LastOwnerInABatchWritesInPlace) {
  TestCache cache = small_cache();
  const SequenceId parent = cache.create();
  ASSERT_TRUE(cache.append(parent, 20).ok());
  const SequenceId first = cache.manager->fork(parent)->child;
  const SequenceId second = cache.manager->fork(parent)->child;
  const std::int32_t shared = cache.blocks(parent, 0)[0];
  const StepPlan step = *cache.prepare({{parent, 4}, {first, 4}, {second, 4}});
  EXPECT_EQ(step.counts.block_copies, 2 * 2);
  EXPECT_NE(cache.blocks(parent, 0)[0], shared);
  EXPECT_NE(cache.blocks(first, 0)[0], shared);
  EXPECT_EQ(cache.blocks(second, 0)[0], shared);
  ASSERT_TRUE(cache.manager->commit(step.serial).ok());
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

TEST(CopyOnWrite, FullBlocksAreNeverCopied) {
  TestCache cache = small_cache();
  const SequenceId parent = cache.create();
  ASSERT_TRUE(cache.append(parent, 256).ok());  // every pool's last block is full
  const SequenceId child = cache.manager->fork(parent)->child;
  const StepPlan step = *cache.prepare({{parent, 128}, {child, 128}});
  EXPECT_EQ(step.counts.block_copies, 0);
  ASSERT_TRUE(cache.manager->commit(step.serial).ok());
  EXPECT_EQ(cache.blocks(parent, 0)[3], cache.blocks(child, 0)[3]);
  EXPECT_NE(cache.blocks(parent, 0)[4], cache.blocks(child, 0)[4]);
}

// Rolling back into a full shared block makes it a tail that must be copied.
TEST(CopyOnWrite, TruncationIntoASharedBlockCopiesOnTheNextWrite) {
  TestCache cache = small_cache(4, 2048, 8);
  const SequenceId parent = cache.create();
  ASSERT_TRUE(cache.append(parent, 128).ok());
  const SequenceId child = cache.manager->fork(parent)->child;
  ASSERT_TRUE(cache.manager->truncate(child, 122).ok());
  EXPECT_EQ(cache.blocks(parent, 0), cache.blocks(child, 0));
  const StepPlan step = *cache.prepare({{child, 2}});
  EXPECT_EQ(step.counts.block_copies, 2);
  ASSERT_TRUE(cache.manager->commit(step.serial).ok());
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

}  // namespace
}  // namespace dsv4rt
