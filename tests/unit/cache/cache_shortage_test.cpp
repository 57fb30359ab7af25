// When blocks run short: reservations, admission, and failures that must change nothing.
#include <vector>

#include <gtest/gtest.h>

#include "cache/kv_cache_manager.h"
#include "cache_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::expect_refused;
using testing_cache::small_cache;
using testing_cache::TestCache;

// Lesson 13: a reservation is honoured in every role, whatever the others do.
TEST(CacheShortage, Lesson13ReservationsHoldInEveryPool) {
  TestCache cache = small_cache(4, 1024);
  for (std::int64_t& blocks : cache.plan.pool_blocks) blocks = 0;
  cache.plan.pool_blocks = {1 + 20, 1 + 20, 1 + 5};  // CSA 1280 tokens, HCA 1280 tokens
  cache.rebuild();
  const SequenceId reserved = cache.create(1024);
  EXPECT_EQ(cache.manager->usage(0).reserved, 16);
  EXPECT_EQ(cache.manager->usage(2).reserved, 4);
  const SequenceId greedy = cache.create();
  ASSERT_TRUE(cache.append(greedy, 256).ok());
  expect_refused(cache.append(greedy, 4), StatusCode::kResourceExhausted,
                 {"CSA_KV", "layer 0", "1 blocks", "16 of those reserved", "bytes"});
  for (int i = 0; i < 1024; ++i) ASSERT_TRUE(cache.append(reserved, 1).ok());
  EXPECT_EQ(cache.manager->usage(0).reserved, 0);
  EXPECT_EQ(cache.manager->usage(0).free, 0);
}

TEST(CacheShortage, Lesson13AdmissionLooksAtEveryPool) {
  TestCache cache = small_cache(4, 1024);
  for (const auto& [pool, role] : {std::pair{0, "CSA_KV"}, {1, "INDEX_K"}, {2, "HCA_KV"}}) {
    cache.plan.pool_blocks = {1 + 16, 1 + 16, 1 + 4};
    cache.plan.pool_blocks[static_cast<std::size_t>(pool)] -= 1;
    cache.rebuild();
    const Status status = cache.manager->can_admit(1024);
    expect_refused(status, StatusCode::kResourceExhausted, {role, "1 blocks"});
    expect_refused(cache.manager->create_sequence(1024).status(), StatusCode::kResourceExhausted, {role});
    EXPECT_EQ(cache.manager->live_sequences(), 0);
    EXPECT_TRUE(cache.manager->can_admit(768).ok());
  }
  expect_refused(cache.manager->can_admit(1025), StatusCode::kInvalidArgument, {"1025", "0 .. 1024"});
  expect_refused(cache.manager->can_admit(-1), StatusCode::kInvalidArgument, {"-1"});
}

TEST(CacheShortage, ForkIsRefusedWhenReservationsCannotPayForTheCopies) {
  TestCache cache = small_cache(4, 1024);
  cache.plan.pool_blocks = {1 + 16, 1 + 16, 1 + 4};
  cache.rebuild();
  const SequenceId parent = cache.create(1024);
  ASSERT_TRUE(cache.append(parent, 100).ok());
  const auto before = cache.snapshot({parent});
  // Even a child without reservation makes the parent copy its tail some day.
  expect_refused(cache.manager->fork(parent).status(), StatusCode::kResourceExhausted, {"fork", "CSA_KV"});
  expect_refused(cache.manager->fork(parent, 1024).status(), StatusCode::kResourceExhausted, {"fork"});
  expect_refused(cache.manager->fork(parent, -1).status(), StatusCode::kInvalidArgument, {"-1"});
  EXPECT_EQ(cache.snapshot({parent}), before);
  ASSERT_TRUE(cache.append(parent, 156).ok());  // 256: no partial tail anywhere
  EXPECT_TRUE(cache.manager->fork(parent).ok());
}

// A truncated sequence with a reservation may need blocks again that now belong to its fork alone.
TEST(CacheShortage, TruncationThatBreaksTheReservationIsRefused) {
  TestCache cache = small_cache(4, 1024);
  cache.plan.pool_blocks = {1 + 16, 1 + 16, 1 + 4};
  cache.rebuild();
  const SequenceId parent = cache.create(1024);
  ASSERT_TRUE(cache.append(parent, 512).ok());
  const SequenceId child = cache.manager->fork(parent)->child;
  const auto before = cache.snapshot({parent, child});
  expect_refused(cache.manager->truncate(parent, 0), StatusCode::kResourceExhausted, {"truncate", "CSA_KV"});
  EXPECT_EQ(cache.snapshot({parent, child}), before);
  ASSERT_TRUE(cache.manager->release(child).ok());
  EXPECT_TRUE(cache.manager->truncate(parent, 0).ok());
}

// Lesson 18: whichever block of whichever pool is the one too many, nothing has changed.
TEST(CacheShortage, Lesson18NthAllocationFailingInEveryPool) {
  for (std::size_t pool = 0; pool < 3; ++pool) {
    for (std::int64_t available = 0; available < 12; ++available) {
      TestCache cache = small_cache(4, 1024, 4);
      cache.plan.pool_blocks[pool] = 1 + available;
      cache.rebuild();
      const SequenceId a = cache.create();
      const SequenceId b = cache.create();
      std::vector<SequenceId> live{a, b};
      Status status;
      auto before = cache.snapshot(live);
      // Chunks, decodes and copies until a pool has nothing left.
      for (int round = 0; status.ok() && round < 40; ++round) {
        if (round == 3) live.push_back(cache.manager->fork(a)->child);
        before = cache.snapshot(live);
        std::vector<StepEntry> batch;
        for (const SequenceId id : live) batch.push_back({id, 30 + round});
        const Result<StepPlan> step = cache.prepare(batch);
        status = step.status();
        if (step.ok()) {
          ASSERT_TRUE(cache.manager->commit(step->serial).ok());
        }
        ASSERT_TRUE(cache.manager->check_invariants().ok());
      }
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(cache.snapshot(live), before) << "pool " << pool << ", " << available << " blocks";
      if (status.code() == StatusCode::kResourceExhausted) {
        EXPECT_NE(status.message().find("missing"), std::string::npos);
      }
      // The next request is fine: releasing one sequence lets another go on.
      for (const SequenceId id : live) ASSERT_TRUE(cache.manager->release(id).ok());
      for (int p = 0; p < 3; ++p) EXPECT_EQ(cache.manager->usage(p).free, cache.manager->usage(p).total);
    }
  }
}

// Lesson 18: a request is cancelled before, in and after a step; nothing leaks.
TEST(CacheShortage, Lesson18CancelledAtEveryPhase) {
  TestCache cache = small_cache(4, 1024, 4);
  for (int phase = 0; phase < 4; ++phase) {
    const SequenceId sequence = cache.create(512);
    if (phase >= 1) {
      ASSERT_TRUE(cache.append(sequence, 130).ok());
    }
    if (phase == 2) {
      const StepPlan step = *cache.prepare({{sequence, 200}});
      ASSERT_TRUE(cache.manager->rollback(step.serial, StepProgress::kPrepared).ok());
    }
    if (phase == 3) {
      const StepPlan step = *cache.prepare({{sequence, 5}});
      ASSERT_TRUE(cache.manager->commit(step.serial, std::vector<std::int32_t>{1}).ok());
    }
    ASSERT_TRUE(cache.manager->release(sequence).ok());
    ASSERT_TRUE(cache.manager->check_invariants().ok());
    for (int pool = 0; pool < 3; ++pool) {
      EXPECT_EQ(cache.manager->usage(pool).live, 0);
      EXPECT_EQ(cache.manager->usage(pool).reserved, 0);
    }
  }
}

}  // namespace
}  // namespace dsv4rt
