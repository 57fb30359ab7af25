// Lesson 1: every boundary position with every operation, and every residue mod 4 and mod 128.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "cache_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::config_with_ratios;
using testing_cache::make_cache;
using testing_cache::TestCache;

constexpr std::int32_t kDraftBudget = 4;

TestCache boundary_cache() {
  CacheFormats formats;
  formats.csa_rows_per_block = 16;
  formats.hca_rows_per_block = 2;
  formats.draft_budget_tokens = kDraftBudget;
  return make_cache(config_with_ratios({0, 4, 128}), formats,
                    {.max_sequences = 4, .max_context_tokens = 1024, .max_step_tokens = 1024});
}

// Masks, rows and positions of a step with one sequence, from the definitions.
void expect_step(const TestCache& cache, const StepPlan& step, std::int64_t start, std::int32_t tokens) {
  const StepView view = cache.view(step);
  ASSERT_EQ(view.counts.valid_tokens, tokens);
  EXPECT_EQ(view.sequence_start[0], start);
  for (std::int32_t t = 0; t < tokens; ++t) {
    EXPECT_EQ(view.token_position[t], start + t);
    for (int c = 0; c < 2; ++c) {
      const std::int64_t ratio = cache.schedule.ratios()[static_cast<std::size_t>(c)];
      const bool ends = (start + t + 1) % ratio == 0;
      EXPECT_EQ(view.valid_mask[c][t], ends ? 1 : 0) << "position " << start + t << " ratio " << ratio;
      EXPECT_EQ(view.row_index[c][t], ends ? (start + t) / ratio : -1) << "position " << start + t;
    }
  }
}

void expect_blocks(const TestCache& cache, SequenceId sequence, std::int64_t length) {
  ASSERT_EQ(*cache.manager->length(sequence), length);
  for (int pool = 0; pool < 3; ++pool) {
    const PoolSpec& spec = cache.layout.pools()[static_cast<std::size_t>(pool)];
    const std::int64_t rows = length / spec.ratio;
    const std::int64_t blocks = (rows + spec.shape.rows - 1) / spec.shape.rows;
    EXPECT_EQ(static_cast<std::int64_t>(cache.blocks(sequence, pool).size()), blocks)
        << "pool " << pool << " at " << length;
  }
  const Status status = cache.manager->check_invariants();
  EXPECT_TRUE(status.ok()) << status.to_string();
}

class CacheBoundary : public testing::TestWithParam<std::int32_t> {};

TEST_P(CacheBoundary, Lesson1AppendAroundThePosition) {
  TestCache cache = boundary_cache();
  const SequenceId sequence = cache.create();
  const std::int32_t position = GetParam();
  ASSERT_TRUE(cache.append(sequence, position - 2).ok());
  for (std::int64_t length = position - 2; length < position + 3; ++length) {
    const StepPlan step = *cache.prepare({{sequence, 1}});
    expect_step(cache, step, length, 1);
    ASSERT_TRUE(cache.manager->commit(step.serial).ok());
    expect_blocks(cache, sequence, length + 1);
  }
}

TEST_P(CacheBoundary, Lesson1PrefillChunks) {
  const std::int32_t position = GetParam();
  for (const std::int32_t first : {1, position / 2, position - 1}) {
    TestCache cache = boundary_cache();
    const SequenceId sequence = cache.create();
    ASSERT_TRUE(cache.append(sequence, first).ok());
    const StepPlan rest = *cache.prepare({{sequence, position - first}});
    expect_step(cache, rest, first, position - first);
    ASSERT_TRUE(cache.manager->commit(rest.serial).ok());
    expect_blocks(cache, sequence, position);
    const StepPlan next = *cache.prepare({{sequence, 200}});
    expect_step(cache, next, position, 200);
    ASSERT_TRUE(cache.manager->commit(next.serial).ok());
    expect_blocks(cache, sequence, position + 200);
  }
}

TEST_P(CacheBoundary, Lesson1VerifyAcceptsAnyPrefix) {
  const std::int32_t position = GetParam();
  for (std::int32_t accepted = 0; accepted <= kDraftBudget + 1; ++accepted) {
    TestCache cache = boundary_cache();
    const SequenceId sequence = cache.create();
    ASSERT_TRUE(cache.append(sequence, position).ok());
    const StepPlan step = *cache.prepare({{sequence, kDraftBudget + 1}});
    expect_step(cache, step, position, kDraftBudget + 1);
    const std::vector<std::int32_t> counts{accepted};
    ASSERT_TRUE(cache.manager->commit(step.serial, counts).ok());
    expect_blocks(cache, sequence, position + accepted);
    // The same happens once more from there: drafts are rejected again and again in service.
    const StepPlan again = *cache.prepare({{sequence, kDraftBudget + 1}});
    expect_step(cache, again, position + accepted, kDraftBudget + 1);
    ASSERT_TRUE(cache.manager->commit(again.serial, std::vector<std::int32_t>{0}).ok());
    expect_blocks(cache, sequence, position + accepted);
  }
}

TEST_P(CacheBoundary, Lesson1Rollback) {
  const std::int32_t position = GetParam();
  for (std::int32_t back = 1; back <= kDraftBudget; ++back) {
    if (back > position) continue;
    TestCache cache = boundary_cache();
    const SequenceId sequence = cache.create();
    ASSERT_TRUE(cache.append(sequence, position).ok());
    ASSERT_TRUE(cache.manager->truncate(sequence, position - back).ok());
    expect_blocks(cache, sequence, position - back);
    const StepPlan step = *cache.prepare({{sequence, back + 1}});
    expect_step(cache, step, position - back, back + 1);
    ASSERT_TRUE(cache.manager->commit(step.serial).ok());
    expect_blocks(cache, sequence, position + 1);
  }
}

TEST_P(CacheBoundary, Lesson1Fork) {
  const std::int32_t position = GetParam();
  TestCache cache = boundary_cache();
  const SequenceId parent = cache.create();
  ASSERT_TRUE(cache.append(parent, position).ok());
  const SequenceId child = cache.manager->fork(parent)->child;
  expect_blocks(cache, child, position);
  const std::vector<std::int32_t> rows_before = cache.blocks(parent, 0);
  const StepPlan step = *cache.prepare({{child, 5}});
  expect_step(cache, step, position, 5);
  // A copy in a pool exactly when the child finishes a row in a partly filled block.
  std::int32_t copies = 0;
  for (const PoolSpec& pool : cache.layout.pools()) {
    const bool writes = (position + 5) / pool.ratio > position / pool.ratio;
    copies += writes && (position / pool.ratio) % pool.shape.rows != 0 ? 1 : 0;
  }
  EXPECT_EQ(step.counts.block_copies, copies);
  ASSERT_TRUE(cache.manager->commit(step.serial).ok());
  expect_blocks(cache, child, position + 5);
  expect_blocks(cache, parent, position);
  EXPECT_EQ(cache.blocks(parent, 0), rows_before);
  ASSERT_TRUE(cache.append(parent, 130).ok());
  expect_blocks(cache, parent, position + 130);
  expect_blocks(cache, child, position + 5);
}

INSTANTIATE_TEST_SUITE_P(Positions, CacheBoundary,
                         testing::Values(3, 4, 5, 7, 8, 127, 128, 129, 130, 255, 256, 257, 511, 512, 513));

// Every residue mod 128 (and so mod 4), as the start and as the end of a step.
TEST(CacheResidues, Lesson1EveryResidueAsStart) {
  TestCache cache = boundary_cache();
  const SequenceId sequence = cache.create();
  for (std::int64_t start = 0; start < 300; ++start) {
    for (const std::int32_t tokens : {1, 3, 4, 5, 127, 128, 129, 256}) {
      const StepPlan step = *cache.prepare({{sequence, tokens}});
      expect_step(cache, step, start, tokens);
      ASSERT_TRUE(cache.manager->rollback(step.serial, StepProgress::kPrepared).ok());
    }
    expect_blocks(cache, sequence, start);
    ASSERT_TRUE(cache.append(sequence, 1).ok());
  }
}

// How far back every length can go: at least the draft budget, never to a gap.
TEST(CacheResidues, Lesson1EveryResidueCanRollBackTheDraftBudget) {
  TestCache cache = boundary_cache();
  const SequenceId sequence = cache.create();
  for (std::int64_t length = 1; length < 400; ++length) {
    ASSERT_TRUE(cache.append(sequence, 1).ok());
    const std::int64_t earliest = *cache.manager->earliest_truncation(sequence);
    EXPECT_LE(earliest, std::max<std::int64_t>(0, length - kDraftBudget - 1));
    EXPECT_GE(earliest, std::max<std::int64_t>(0, length - kDraftBudget - 8));
  }
}

}  // namespace
}  // namespace dsv4rt
