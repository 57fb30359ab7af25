// After creation, steps allocate nothing: every operator new of this program is counted.
#include <gtest/gtest.h>

#include "cache_fixture.h"
#include "support/count_allocations.h"

namespace dsv4rt::test {
namespace {

using testing_cache::make_cache;
using testing_cache::model_config;
using testing_cache::TestCache;

TEST(SteadyPath, CountsAllocations) {
  const std::uint64_t before = allocations;
  ::operator delete(::operator new(1));  // unlike a new expression, never optimised away
  EXPECT_EQ(allocations, before + 1);
}

// Decode, verify with rejections, steps rolled back before they started, new blocks and copies of shared blocks.
TEST(SteadyPath, StepsAllocateNothing) {
  CacheFormats formats;
  formats.draft_budget_tokens = 4;
  TestCache cache = make_cache(model_config("deepseek-v4-flash"), formats,
                               {.max_sequences = 32, .max_context_tokens = 4096, .max_step_tokens = 512});
  cache.manager->record_freed_blocks();  // what is recorded fits into memory taken here
  std::vector<StepEntry> batch;
  for (int i = 0; i < 16; ++i) batch.push_back({cache.create(i % 2 == 0 ? 4096 : 0), 1});
  const StepPlan prompt = *cache.prepare(batch);
  ASSERT_TRUE(cache.manager->commit(prompt.serial).ok());
  for (int i = 0; i < 16; ++i) {
    batch.push_back({cache.manager->fork(batch[static_cast<std::size_t>(i)].sequence)->child, 1});
  }
  std::vector<std::int32_t> accepted(batch.size(), 0);
  std::int32_t copies = 0;
  std::int32_t deltas = 0;
  std::size_t freed = 0;

  const std::uint64_t before = allocations;
  for (int round = 0; round < 600; ++round) {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      batch[i].tokens = 1 + (round + static_cast<int>(i)) % 5;
      accepted[i] = batch[i].tokens - (round % 3 == 0 ? static_cast<int>(i) % batch[i].tokens : 0);
    }
    const Result<StepPlan> step = cache.manager->prepare_forward(batch, {.pad_to_tokens = 256});
    if (!step.ok()) break;
    copies += step->counts.block_copies;
    deltas += step->counts.table_deltas;
    const Status done = round % 7 == 0 ? cache.manager->rollback(step->serial, StepProgress::kPrepared).status()
                                       : cache.manager->commit(step->serial, accepted);
    if (!done.ok()) break;
    freed += cache.manager->freed_blocks().size();
  }
  const std::uint64_t after = allocations;

  EXPECT_EQ(after, before);
  EXPECT_GT(*cache.manager->length(batch[0].sequence), 1000);
  EXPECT_GE(deltas, 32 * 62);
  EXPECT_GT(freed, 0U);
  EXPECT_EQ(copies, 0);  // the forks were made before any row was finished
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

TEST(SteadyPath, CopiesOfSharedBlocksAllocateNothing) {
  TestCache cache = make_cache(model_config("deepseek-v4-flash"), {},
                               {.max_sequences = 8, .max_context_tokens = 4096, .max_step_tokens = 512});
  const SequenceId parent = cache.create();
  ASSERT_TRUE(cache.append(parent, 200).ok());
  std::vector<StepEntry> batch{{parent, 200}};
  batch.push_back({cache.manager->fork(parent)->child, 200});
  const std::uint64_t before = allocations;
  const Result<StepPlan> step = cache.manager->prepare_forward(batch);
  const Status done = step.ok() ? cache.manager->commit(step->serial) : step.status();
  const std::uint64_t after = allocations;
  ASSERT_TRUE(done.ok()) << done.to_string();
  EXPECT_EQ(after, before);
  EXPECT_EQ(step->counts.block_copies, 62);  // one of the two owners in every pool
}

}  // namespace
}  // namespace dsv4rt::test
