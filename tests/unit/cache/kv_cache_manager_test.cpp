// KVCacheManager: life cycle, refusals, reservations, and the lessons that concern it.
#include "cache/kv_cache_manager.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "base/check.h"
#include "cache_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::config_with_ratios;
using testing_cache::expect_refused;
using testing_cache::make_cache;
using testing_cache::small_cache;
using testing_cache::TestCache;

TEST(KVCacheManager, SequenceHoldsExactlyTheBlocksOfItsLength) {
  TestCache cache = small_cache();
  const SequenceId sequence = cache.create();
  for (std::int64_t length = 1; length <= 600; ++length) {
    ASSERT_TRUE(cache.append(sequence, 1).ok());
    EXPECT_EQ(*cache.manager->length(sequence), length);
    EXPECT_EQ(cache.blocks(sequence, 0).size(), static_cast<std::size_t>((length / 4 + 15) / 16));
    EXPECT_EQ(cache.blocks(sequence, 1).size(), cache.blocks(sequence, 0).size());
    EXPECT_EQ(cache.blocks(sequence, 2).size(), static_cast<std::size_t>((length / 128 + 1) / 2));
  }
  EXPECT_TRUE(cache.manager->check_invariants().ok());
  ASSERT_TRUE(cache.manager->release(sequence).ok());
  for (int pool = 0; pool < 3; ++pool) EXPECT_EQ(cache.manager->usage(pool).live, 0);
  EXPECT_EQ(cache.manager->live_sequences(), 0);
}

TEST(KVCacheManager, TableStrideCoversTheContext) {
  const TestCache cache = small_cache(4, 2048);
  EXPECT_EQ(cache.manager->table_stride(0), 32);
  EXPECT_EQ(cache.manager->table_stride(2), 8);
  const TestCache tiny = small_cache(1, 3);
  EXPECT_EQ(tiny.manager->table_stride(0), 1);
}

TEST(KVCacheManager, MetadataOfAMixedStep) {
  TestCache cache = small_cache();
  const SequenceId decode = cache.create();
  const SequenceId prefill = cache.create();
  ASSERT_TRUE(cache.append(decode, 127).ok());
  const StepPlan step = *cache.prepare({{decode, 1}, {prefill, 9}});
  const StepView view = cache.view(step);
  EXPECT_EQ(view.counts.tokens, 10);
  EXPECT_EQ(view.counts.valid_tokens, 10);
  EXPECT_EQ(view.counts.sequences, 2);
  EXPECT_EQ(view.counts.longest_entry, 9);
  EXPECT_EQ(view.counts.context_end, 128);
  EXPECT_EQ(view.sequence_slot[0], cache.manager->slot(decode)->value);
  EXPECT_EQ(view.sequence_slot[1], cache.manager->slot(prefill)->value);
  EXPECT_EQ(view.sequence_start[0], 127);
  EXPECT_EQ(view.sequence_start[1], 0);
  EXPECT_EQ(view.sequence_first_token[1], 1);
  EXPECT_EQ(view.sequence_first_token[2], 10);
  EXPECT_EQ(view.token_position[0], 127);
  EXPECT_EQ(view.valid_mask[0][0], 1);
  EXPECT_EQ(view.row_index[0][0], 31);
  EXPECT_EQ(view.valid_mask[1][0], 1);
  EXPECT_EQ(view.row_index[1][0], 0);
  EXPECT_EQ(view.token_position[8], 7);
  EXPECT_EQ(view.row_index[0][8], 1);
  EXPECT_EQ(view.row_index[0][7], -1);
  EXPECT_EQ(view.row_index[1][8], -1);
  // HCA row 0 for the decode, CSA and index rows 0 and 1 of the prefill: three new blocks.
  EXPECT_EQ(view.counts.table_deltas, 3);
  EXPECT_EQ(view.counts.block_copies, 0);
  // The header in the buffer says what the host copy says.
  EXPECT_EQ(std::memcmp(step.metadata.data(), &step.counts, sizeof(StepHeader)), 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(step.metadata.data()) % 64, 0u);
  EXPECT_TRUE(cache.manager->commit(step.serial).ok());
}

// Lesson 7: padding rows name no sequence, no slot and no row; counts stay non-negative.
TEST(KVCacheManager, Lesson7PaddingRowsTouchNothing) {
  TestCache cache = small_cache();
  const SequenceId sequence = cache.create();
  // A long step first, so that the buffer is full of old values.
  ASSERT_TRUE(cache.append(sequence, 512).ok());
  const StepPlan step = *cache.prepare({{sequence, 3}}, 128);
  const StepView view = cache.view(step);
  EXPECT_EQ(view.counts.tokens, 128);
  EXPECT_EQ(view.counts.valid_tokens, 3);
  for (int t = 3; t < 128; ++t) {
    EXPECT_EQ(view.token_sequence[t], -1);
    EXPECT_EQ(view.token_position[t], 0);
    for (int c = 0; c < 2; ++c) {
      EXPECT_EQ(view.valid_mask[c][t], 0);
      EXPECT_EQ(view.row_index[c][t], -1);
    }
  }
  ASSERT_TRUE(cache.manager->commit(step.serial).ok());
  EXPECT_EQ(*cache.manager->length(sequence), 515);
}

TEST(KVCacheManager, RefusedBatchesChangeNothing) {
  TestCache cache = small_cache(3, 300);
  const SequenceId a = cache.create();
  const SequenceId b = cache.create();
  ASSERT_TRUE(cache.append(a, 290).ok());
  const auto before = cache.snapshot({a, b});
  const auto refuse = [&](const std::vector<StepEntry>& batch, StatusCode code, const std::vector<std::string>& parts,
                          std::int32_t padding = 0) {
    expect_refused(cache.prepare(batch, padding).status(), code, parts);
    EXPECT_EQ(cache.snapshot({a, b}), before);
  };
  const SequenceId stale{.index = 1, .generation = 77};
  refuse({}, StatusCode::kInvalidArgument, {"0 sequences", "accepted"});
  refuse({{a, 1}, {b, 1}, {a, 1}, {b, 1}}, StatusCode::kInvalidArgument, {"4 sequences", "max_sequences"});
  refuse({{b, 1}, {stale, 1}}, StatusCode::kStaleHandle, {"index 1", "generation 77"});
  refuse({{b, 1}, {SequenceId{}, 1}}, StatusCode::kStaleHandle, {"generation 0"});
  refuse({{b, 1}, {b, 1}}, StatusCode::kInvalidArgument, {"twice"});
  refuse({{b, 0}}, StatusCode::kInvalidArgument, {"tokens = 0"});
  refuse({{b, -5}}, StatusCode::kInvalidArgument, {"tokens = -5"});
  refuse({{a, 11}}, StatusCode::kInvalidArgument, {"max_context_tokens = 300"});
  refuse({{b, std::numeric_limits<std::int32_t>::max()}}, StatusCode::kInvalidArgument, {"max_context_tokens"});
  refuse({{b, 5}}, StatusCode::kInvalidArgument, {"pad_to_tokens = 4"}, 4);
  refuse({{b, 5}}, StatusCode::kInvalidArgument, {"pad_to_tokens = 1025"}, 1025);
  refuse({{b, 5}}, StatusCode::kInvalidArgument, {"pad_to_tokens = -1"}, -1);
  EXPECT_TRUE(cache.manager->check_invariants().ok());
  EXPECT_TRUE(cache.append(b, 5).ok());
}

TEST(KVCacheManager, StepTokensAreLimited) {
  TestCache cache = small_cache(2, 2048);
  const SequenceId a = cache.create();
  const SequenceId b = cache.create();
  expect_refused(cache.prepare({{a, 1000}, {b, 25}}).status(), StatusCode::kInvalidArgument,
                 {"1025 tokens", "max_step_tokens = 1024"});
  EXPECT_TRUE(cache.prepare({{a, 1000}, {b, 24}}).ok());
}

TEST(KVCacheManager, OneStepAtATime) {
  TestCache cache = small_cache();
  const SequenceId sequence = cache.create();
  const StepPlan step = *cache.prepare({{sequence, 5}});
  const std::string serial = "step " + std::to_string(step.serial);
  EXPECT_EQ(*cache.manager->length(sequence), 5);
  expect_refused(cache.prepare({{sequence, 1}}).status(), StatusCode::kFailedPrecondition, {"prepare_forward", serial});
  expect_refused(cache.manager->create_sequence().status(), StatusCode::kFailedPrecondition, {serial});
  expect_refused(cache.manager->can_admit(0), StatusCode::kFailedPrecondition, {serial});
  expect_refused(cache.manager->fork(sequence).status(), StatusCode::kFailedPrecondition, {"fork", serial});
  expect_refused(cache.manager->truncate(sequence, 0), StatusCode::kFailedPrecondition, {"truncate", serial});
  expect_refused(cache.manager->release(sequence), StatusCode::kFailedPrecondition, {"release", serial});
  expect_refused(cache.manager->commit(step.serial + 1), StatusCode::kFailedPrecondition, {"commit", serial + " is"});
  expect_refused(cache.manager->rollback(step.serial - 1, StepProgress::kPrepared).status(),
                 StatusCode::kFailedPrecondition, {"rollback"});
  ASSERT_TRUE(cache.manager->commit(step.serial).ok());
  expect_refused(cache.manager->commit(step.serial), StatusCode::kFailedPrecondition, {"no step is"});
  expect_refused(cache.manager->rollback(step.serial, StepProgress::kPrepared).status(),
                 StatusCode::kFailedPrecondition, {"no step is"});
}

TEST(KVCacheManager, StaleIdsAreRefusedEverywhere) {
  TestCache cache = small_cache();
  const SequenceId old = cache.create();
  ASSERT_TRUE(cache.append(old, 100).ok());
  ASSERT_TRUE(cache.manager->release(old).ok());
  const SequenceId successor = cache.create();
  ASSERT_EQ(successor.index, old.index);
  ASSERT_TRUE(cache.append(successor, 10).ok());
  for (const SequenceId id : {old, SequenceId{}, SequenceId{.index = 1000, .generation = 1}}) {
    for (const Status& status : {cache.manager->length(id).status(), cache.manager->slot(id).status(),
                                 cache.manager->earliest_truncation(id).status(), cache.manager->blocks(id, 0).status(),
                                 cache.manager->fork(id).status(), cache.manager->truncate(id, 0),
                                 cache.manager->release(id), cache.append(id, 1)}) {
      expect_refused(status, StatusCode::kStaleHandle,
                     {"index " + std::to_string(id.index), "generation " + std::to_string(id.generation)});
    }
  }
  EXPECT_EQ(*cache.manager->length(successor), 10);
}

TEST(KVCacheManager, CommitValidatesBeforeItChanges) {
  TestCache cache = small_cache(4, 2048, 3);
  const SequenceId a = cache.create();
  const SequenceId b = cache.create();
  ASSERT_TRUE(cache.append(a, 200).ok());
  ASSERT_TRUE(cache.append(b, 200).ok());
  const StepPlan step = *cache.prepare({{a, 4}, {b, 40}});
  const auto before = cache.snapshot({a, b});
  const auto refuse = [&](std::vector<std::int32_t> accepted, const std::vector<std::string>& parts) {
    expect_refused(cache.manager->commit(step.serial, accepted), StatusCode::kInvalidArgument, parts);
    EXPECT_EQ(cache.snapshot({a, b}), before);
  };
  refuse({1}, {"1 entries", "2"});
  refuse({5, 40}, {"accepted[0] = 5", "0 .. 4"});
  refuse({0, -1}, {"accepted[1] = -1"});
  refuse({0, 30}, {"accepted[1] = 30", "draft_budget_tokens = 3", "36 .. 40"});
  ASSERT_TRUE(cache.manager->commit(step.serial, std::vector<std::int32_t>{0, 36}).ok());
  EXPECT_EQ(*cache.manager->length(a), 200);
  EXPECT_EQ(*cache.manager->length(b), 236);
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

TEST(KVCacheManager, RejectedTokensGiveTheirBlocksBack) {
  TestCache cache = small_cache(2, 2048, 7);
  const SequenceId sequence = cache.create();
  ASSERT_TRUE(cache.append(sequence, 253).ok());
  const auto before = cache.snapshot({sequence});
  const StepPlan step = *cache.prepare({{sequence, 8}});  // rows 63 and 64: a new CSA block; HCA row 1
  EXPECT_EQ(cache.blocks(sequence, 0).size(), 5u);
  ASSERT_TRUE(cache.manager->commit(step.serial, std::vector<std::int32_t>{0}).ok());
  EXPECT_EQ(cache.blocks(sequence, 0).size(), 4u);
  auto after = cache.snapshot({sequence});
  after.back() = before.back();  // the rings remember how far they were written
  EXPECT_EQ(after, before);
}

TEST(KVCacheManager, RollbackBeforeTheStartRestoresEverything) {
  TestCache cache = small_cache(4, 2048, 2);
  const SequenceId parent = cache.create(1000);
  ASSERT_TRUE(cache.append(parent, 150).ok());
  const SequenceId child = cache.manager->fork(parent, 600)->child;
  const auto before = cache.snapshot({parent, child});
  const StepPlan step = *cache.prepare({{parent, 300}, {child, 500}});
  EXPECT_GT(step.counts.block_copies, 0);
  EXPECT_NE(cache.snapshot({parent, child}), before);
  ASSERT_TRUE(cache.manager->rollback(step.serial, StepProgress::kPrepared).ok());
  EXPECT_EQ(cache.snapshot({parent, child}), before);
  EXPECT_TRUE(cache.manager->check_invariants().ok());
  // The order of the free lists is restored too: the same step gets the same blocks again.
  const StepView first = cache.view(step);
  const std::vector<BlockTableDelta> deltas(first.table_deltas, first.table_deltas + first.counts.table_deltas);
  const StepPlan again = *cache.prepare({{parent, 300}, {child, 500}});
  const StepView second = cache.view(again);
  ASSERT_EQ(again.counts.table_deltas, static_cast<std::int32_t>(deltas.size()));
  EXPECT_EQ(std::memcmp(second.table_deltas, deltas.data(), deltas.size() * sizeof(BlockTableDelta)), 0);
}

// Lesson 5: what a fork needs besides shared rows is its own: slot and rings, as far as they were written.
TEST(KVCacheManager, Lesson5ForkHasItsOwnSwaRing) {
  TestCache cache = small_cache(4, 2048, 4);
  const SequenceId parent = cache.create();
  ASSERT_TRUE(cache.append(parent, 300).ok());
  ASSERT_TRUE(cache.manager->truncate(parent, 297).ok());
  const ForkResult fork = *cache.manager->fork(parent);
  EXPECT_EQ(fork.source, *cache.manager->slot(parent));
  EXPECT_EQ(fork.target, *cache.manager->slot(fork.child));
  EXPECT_NE(fork.source, fork.target);
  // The copied rings were written to 300 too: the child can go back exactly as far as the parent.
  EXPECT_EQ(*cache.manager->earliest_truncation(fork.child), *cache.manager->earliest_truncation(parent));
  EXPECT_EQ(*cache.manager->earliest_truncation(parent), 295);
}

// Lesson 5: a sequence is never cut to where its window ring no longer reaches.
TEST(KVCacheManager, Lesson5TruncationBeyondTheRingsIsRefused) {
  TestCache cache = small_cache(4, 2048, 4);
  const SequenceId sequence = cache.create();
  ASSERT_TRUE(cache.append(sequence, 1000).ok());
  const std::int64_t earliest = *cache.manager->earliest_truncation(sequence);
  EXPECT_EQ(earliest, 995);  // the window ring holds positions 868..999, and position 995 reads from 868 on
  const auto before = cache.snapshot({sequence});
  expect_refused(cache.manager->truncate(sequence, earliest - 1), StatusCode::kFailedPrecondition,
                 {"new_length = 994", "position 999", "995"});
  expect_refused(cache.manager->truncate(sequence, 1001), StatusCode::kInvalidArgument, {"1001", "0 .. 1000"});
  expect_refused(cache.manager->truncate(sequence, -1), StatusCode::kInvalidArgument, {"-1"});
  EXPECT_EQ(cache.snapshot({sequence}), before);
  EXPECT_TRUE(cache.manager->truncate(sequence, 1000).ok());
  EXPECT_TRUE(cache.manager->truncate(sequence, earliest).ok());
  // Going back does not make the overwritten rows come back.
  EXPECT_EQ(cache.manager->truncate(sequence, earliest - 1).code(), StatusCode::kFailedPrecondition);
  // Cutting to nothing is always possible, and starts over.
  ASSERT_TRUE(cache.manager->truncate(sequence, 0).ok());
  EXPECT_EQ(*cache.manager->earliest_truncation(sequence), 0);
  EXPECT_EQ(cache.manager->usage(0).live, 0);
}

// Lesson 6: no table refers to a freed block, in any pool, after any way of freeing it.
TEST(KVCacheManager, Lesson6FreedBlocksAreInNoTable) {
  TestCache cache = small_cache(4, 2048, 8);
  const SequenceId a = cache.create();
  const SequenceId b = cache.create();
  ASSERT_TRUE(cache.append(a, 500).ok());
  ASSERT_TRUE(cache.append(b, 260).ok());
  const SequenceId c = cache.manager->fork(a)->child;
  const auto check = [&](const std::vector<SequenceId>& live) {
    ASSERT_TRUE(cache.manager->check_invariants().ok());
    for (int pool = 0; pool < 3; ++pool) {
      std::set<std::int32_t> distinct;
      for (const SequenceId id : live) {
        for (const std::int32_t block : cache.blocks(id, pool)) {
          EXPECT_NE(block, 0);
          distinct.insert(block);
        }
      }
      EXPECT_EQ(static_cast<std::int64_t>(distinct.size()), cache.manager->usage(pool).live);
    }
  };
  check({a, b, c});
  ASSERT_TRUE(cache.manager->truncate(c, 495).ok());
  check({a, b, c});
  ASSERT_TRUE(cache.manager->release(a).ok());
  check({b, c});
  ASSERT_TRUE(cache.manager->truncate(b, 0).ok());
  check({b, c});
  // Blocks that come back go to one new owner only.
  ASSERT_TRUE(cache.append(b, 700).ok());
  check({b, c});
}

TEST(KVCacheManager, SlotsAreLimited) {
  TestCache cache = small_cache(2);
  const SequenceId a = cache.create();
  const SequenceId b = cache.create();
  EXPECT_NE(*cache.manager->slot(a), *cache.manager->slot(b));
  expect_refused(cache.manager->create_sequence().status(), StatusCode::kResourceExhausted, {"2", "max_sequences"});
  expect_refused(cache.manager->fork(a).status(), StatusCode::kResourceExhausted, {"max_sequences"});
  ASSERT_TRUE(cache.manager->release(a).ok());
  EXPECT_TRUE(cache.manager->create_sequence().ok());
}

TEST(KVCacheManager, CreateRefusesAPlanThatDoesNotBelong) {
  TestCache cache = small_cache();
  const auto refuse = [&](const MemoryPlan& plan, const std::vector<std::string>& parts) {
    expect_refused(KVCacheManager::create(cache.schedule, cache.layout, plan).status(), StatusCode::kInvalidArgument,
                   parts);
  };
  MemoryPlan plan = cache.plan;
  plan.pool_blocks.pop_back();
  refuse(plan, {"2 entries", "3 pools"});
  plan = cache.plan;
  plan.pool_blocks[1] = 0;
  refuse(plan, {"pool_blocks[1] = 0"});
  plan.pool_blocks[1] = std::int64_t{1} << 31;
  refuse(plan, {"2147483648"});
  plan = cache.plan;
  plan.limits.max_sequences = 0;
  refuse(plan, {"max_sequences = 0"});
  plan = cache.plan;
  plan.limits.max_context_tokens = std::int64_t{1} << 40;
  refuse(plan, {"max_context_tokens"});
  plan = cache.plan;
  plan.limits.max_sequences = 1 << 29;
  plan.limits.max_step_tokens = 1 << 29;
  refuse(plan, {"block-table entries"});
  const LayerSchedule other = *LayerSchedule::create(config_with_ratios({128}));
  expect_refused(KVCacheManager::create(other, cache.layout, cache.plan).status(), StatusCode::kInvalidArgument,
                 {"ratio 4", "layer schedule"});
}

TEST(KVCacheManager, CreateReportsWantOfHostMemory) {
  CacheFormats formats;
  formats.csa_rows_per_block = 1;
  TestCache cache = make_cache(config_with_ratios(std::vector<std::int32_t>(8, 4)), formats,
                               {.max_sequences = 1, .max_context_tokens = 100, .max_step_tokens = 8});
  MemoryPlan plan = cache.plan;
  plan.limits.max_sequences = (1 << 30) - 1;
  plan.limits.max_context_tokens = (1 << 30) - 1;  // block tables of about 2^62 entries
  expect_refused(KVCacheManager::create(cache.schedule, cache.layout, plan).status(), StatusCode::kResourceExhausted,
                 {"host memory", "1073741823 sequences"});
}

TEST(KVCacheManager, PoolsOutOfRange) {
  TestCache cache = small_cache();
  const SequenceId sequence = cache.create();
  expect_refused(cache.manager->blocks(sequence, 3).status(), StatusCode::kInvalidArgument, {"pool 3"});
  expect_refused(cache.manager->blocks(sequence, -1).status(), StatusCode::kInvalidArgument, {"pool -1"});
  EXPECT_THROW(static_cast<void>(cache.manager->usage(3)), CheckFailure);
  EXPECT_THROW(static_cast<void>(cache.manager->table_stride(-1)), CheckFailure);
}

TEST(KVCacheManager, WindowOnlyModelNeedsNoPools) {
  TestCache cache = make_cache(config_with_ratios({0, 0}), {},
                               {.max_sequences = 2, .max_context_tokens = 500, .max_step_tokens = 64});
  const SequenceId sequence = cache.create(500);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(cache.append(sequence, 64).ok());
  EXPECT_EQ(*cache.manager->earliest_truncation(sequence), 319);
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

}  // namespace
}  // namespace dsv4rt
