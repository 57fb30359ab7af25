// After creation, steps allocate nothing: every operator new of this program is counted.
#include <array>

#include <gtest/gtest.h>

#include "cache_fixture.h"
#include "prefix_fixture.h"
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

// Steps that bring ids: units and states enter the cache at every boundary, and others leave it for them.
TEST(SteadyPath, KeepingPrefixesAllocatesNothing) {
  TestCache cache;
  {
    CacheFormats formats;
    formats.draft_budget_tokens = 4;
    cache = make_cache(model_config("deepseek-v4-flash"), formats,
                       {.max_sequences = 8,
                        .max_context_tokens = 4096,
                        .max_step_tokens = 2048,
                        .pool_tokens = 4096,
                        .boundary_states = 24});
    cache.manager =
        *KVCacheManager::create(cache.schedule, cache.layout, cache.plan, {.policy = testing_cache::kEveryUnit});
  }
  cache.manager->record_freed_blocks();
  std::vector<std::vector<std::int32_t>> ids;
  for (std::int32_t i = 0; i < 32; ++i) ids.push_back(testing_cache::token_ids(1500, i % 6));
  std::vector<StepEntry> batch(4);
  std::vector<std::int32_t> accepted(4);
  Status status;
  std::size_t captures = 0;
  std::size_t copies = 0;
  std::int64_t hits = 0;

  const std::uint64_t before = allocations;
  for (std::size_t round = 0; round < 8 && status.ok(); ++round) {
    for (std::size_t i = 0; i < 4; ++i) {
      const Result<PrefixStart> start = cache.manager->create_sequence(std::span(ids[4 * round + i]).first(500), {});
      ASSERT_TRUE(start.ok());
      batch[i] = {.sequence = start->sequence, .tokens = 0};
      hits += start->hit_tokens;
      accepted[i] = static_cast<std::int32_t>(start->hit_tokens);
    }
    std::array<std::int32_t, 4> done{accepted[0], accepted[1], accepted[2], accepted[3]};
    for (int step = 0; step < 60 && status.ok(); ++step) {
      for (std::size_t i = 0; i < 4; ++i) {
        batch[i].tokens = std::min(step == 0 ? 400 : 1 + (step + static_cast<int>(i)) % 5, 1500 - done[i]);
        batch[i].token_ids = ids[4 * round + i].data() + done[i];
        accepted[i] = std::max(1, batch[i].tokens - (step % 3 == 0 ? static_cast<int>(i) : 0));
      }
      const Result<StepPlan> plan = cache.manager->prepare_forward(batch);
      ASSERT_TRUE(plan.ok());
      captures += cache.manager->captures().size();
      if (step % 7 == 6) {
        status = cache.manager->rollback(plan->serial, StepProgress::kPrepared).status();
        continue;
      }
      status = cache.manager->commit(plan->serial, accepted);
      copies += cache.manager->boundary_copies().size();
      for (std::size_t i = 0; i < 4; ++i) done[i] += accepted[i];
    }
    for (const StepEntry& entry : batch) status = cache.manager->release(entry.sequence);
  }
  const std::uint64_t after = allocations;

  EXPECT_EQ(after, before);
  EXPECT_TRUE(status.ok()) << status.to_string();
  const PrefixStats stats = cache.manager->prefix_stats();
  EXPECT_GT(hits, 0);
  EXPECT_GT(captures, 20U);
  EXPECT_GT(copies, 10U);
  EXPECT_GT(stats.units_removed_for_space, 20);
  EXPECT_GT(stats.states_removed, 20);
  EXPECT_TRUE(cache.manager->check_invariants().ok()) << cache.manager->check_invariants().to_string();
}

}  // namespace
}  // namespace dsv4rt::test
