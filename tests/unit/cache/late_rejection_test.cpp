// Tokens that are taken back of a committed step, also below a step that has been prepared on them.
#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "cache_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::expect_refused;
using testing_cache::small_cache;
using testing_cache::TestCache;

constexpr std::int32_t kDrafts = 4;

// The step behind becomes one that began where the first one really ended: what it holds, where it may go back to.
TEST(LateRejection, MovesTheStepBehindBack) {
  for (const std::int32_t length : {1, 60, 62, 63, 124, 126, 127, 252, 255}) {
    for (std::int32_t rejected = 0; rejected <= kDrafts + 1; ++rejected) {
      SCOPED_TRACE(std::to_string(rejected) + " at " + std::to_string(length));
      TestCache cache = small_cache(4, 2048, kDrafts);
      TestCache plain = small_cache(4, 2048, kDrafts);
      const SequenceId sequence = cache.create(300);
      const SequenceId expected = plain.create(300);
      ASSERT_TRUE(cache.append(sequence, length).ok());
      ASSERT_TRUE(plain.append(expected, length).ok());
      ASSERT_TRUE(cache.append(sequence, kDrafts + 1).ok());
      const StepPlan step = *cache.prepare({{sequence, 3}});
      const std::vector<LateRejection> late{{sequence, rejected}};
      ASSERT_TRUE(cache.manager->reject_late(late).ok());
      const StepPlan first = *plain.prepare({{expected, kDrafts + 1}});
      const std::vector<std::int32_t> kept{kDrafts + 1 - rejected};
      ASSERT_TRUE(plain.manager->commit(first.serial, kept).ok());
      const StepPlan second = *plain.prepare({{expected, 3}});
      const std::vector<std::int32_t> two{2};
      ASSERT_TRUE(cache.manager->commit(step.serial, two).ok());
      ASSERT_TRUE(plain.manager->commit(second.serial, two).ok());
      EXPECT_EQ(*cache.manager->length(sequence), *plain.manager->length(expected));
      EXPECT_EQ(*cache.manager->earliest_truncation(sequence), *plain.manager->earliest_truncation(expected));
      for (int pool = 0; pool < 3; ++pool) {
        EXPECT_EQ(cache.blocks(sequence, pool).size(), plain.blocks(expected, pool).size());
        EXPECT_EQ(cache.manager->usage(pool).live, plain.manager->usage(pool).live);
        EXPECT_EQ(cache.manager->usage(pool).reserved, plain.manager->usage(pool).reserved);
      }
      const Status intact = cache.manager->check_invariants();
      EXPECT_TRUE(intact.ok()) << intact.to_string();
    }
  }
}

// Forks, reservations, long chunks and cancelled steps in pools that are nearly full: lengths are those of a count kept
// beside, every invariant holds, and reservations are affordable at the end.
TEST(LateRejection, RandomSteps) {
  std::int64_t rejected_tokens = 0;
  std::int64_t copies = 0;
  std::int64_t refused = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](std::int32_t low, std::int32_t high) {
      return std::uniform_int_distribution<std::int32_t>(low, high)(random);
    };
    TestCache cache = small_cache(4, 1024, kDrafts);
    cache.plan.pool_blocks = {1 + 20, 1 + 20, 1 + 6};  // 1,280 tokens
    cache.rebuild();
    KVCacheManager& manager = *cache.manager;
    struct Member {
      SequenceId id;
      std::int64_t length = 0;
      std::int64_t reserve = 0;
    };
    std::vector<Member> members{{cache.create(300), 0, 300}, {cache.create(), 0, 0}};
    std::vector<LateRejection> late;
    const auto settle = [&] {
      ASSERT_TRUE(manager.reject_late(late).ok());
      late.clear();
    };
    for (int round = 0; round < 80; ++round) {
      if (pick(0, 9) == 0) {
        settle();
        Member& member = members[static_cast<std::size_t>(pick(0, static_cast<int>(members.size()) - 1))];
        if (members.size() < 4) {
          if (const auto fork = manager.fork(member.id); fork.ok()) members.push_back({fork->child, member.length, 0});
        } else if (manager.truncate(member.id, 0).ok()) {
          member.length = 0;
        }
      }
      std::vector<StepEntry> batch;
      std::vector<Member*> chosen;
      for (Member& member : members) {
        if (pick(0, 2) == 0) continue;
        batch.push_back({member.id, pick(0, 7) == 0 ? pick(20, 140) : pick(1, kDrafts + 1)});
        chosen.push_back(&member);
      }
      if (batch.empty()) continue;
      const auto step = cache.prepare(batch);
      if (!step.ok()) {
        ++refused;
        settle();
        continue;
      }
      copies += step->counts.block_copies;
      if (pick(0, 9) == 0) {  // undone before it has begun, and what is known late still applies
        ASSERT_TRUE(manager.rollback(step->serial, StepProgress::kPrepared).ok());
        settle();
      } else if (pick(0, 9) == 0) {
        settle();
        const auto emptied = manager.rollback(step->serial, StepProgress::kStarted);
        ASSERT_TRUE(emptied.ok());
        for (Member& member : members) {
          if (std::find(emptied->begin(), emptied->end(), member.id) == emptied->end()) continue;
          member.length = 0;
          member.reserve = 0;
        }
      } else {
        settle();
        ASSERT_TRUE(manager.commit(step->serial).ok());
        for (std::size_t i = 0; i < batch.size(); ++i) {
          const std::int32_t rejected = pick(0, std::min(batch[i].tokens, kDrafts + 1));
          late.push_back({batch[i].sequence, rejected});
          chosen[i]->length += batch[i].tokens - rejected;
          rejected_tokens += rejected;
        }
      }
      const Status intact = manager.check_invariants();
      ASSERT_TRUE(intact.ok()) << intact.to_string();
    }
    settle();
    const Status intact = manager.check_invariants();
    ASSERT_TRUE(intact.ok()) << intact.to_string();
    for (const Member& member : members) {
      EXPECT_EQ(*manager.length(member.id), member.length);
      const auto owed = static_cast<std::int32_t>(member.reserve - member.length);
      if (owed > 0) {
        EXPECT_TRUE(cache.append(member.id, owed).ok());
      }
    }
  }
  EXPECT_GT(rejected_tokens, 10000);
  EXPECT_GT(copies, 100);
  EXPECT_GT(refused, 100);
}

TEST(LateRejection, WrongOnesChangeNothing) {
  TestCache cache = small_cache(4, 2048, kDrafts);
  const SequenceId sequence = cache.create(400);
  const SequenceId released = cache.create();
  const SequenceId other = cache.create();
  ASSERT_TRUE(cache.manager->release(released).ok());
  ASSERT_TRUE(cache.append(sequence, 200).ok());
  ASSERT_TRUE(cache.append(other, 3).ok());
  const auto before = cache.snapshot({sequence, other});
  const auto refused = [&](const std::vector<LateRejection>& late, StatusCode code, const std::string& part) {
    expect_refused(cache.manager->reject_late(late), code, {part});
    EXPECT_EQ(cache.snapshot({sequence, other}), before);
  };
  refused({{other, 1}, {released, 1}}, StatusCode::kStaleHandle, "");
  refused({{other, 1}, {sequence, -1}}, StatusCode::kInvalidArgument, "tokens = -1 of a sequence of 200");
  refused({{other, 1}, {sequence, kDrafts + 8}}, StatusCode::kInvalidArgument, "tokens = 12 of a sequence of 200");
  refused({{other, 4}}, StatusCode::kInvalidArgument, "tokens = 4 of a sequence of 3");
}

}  // namespace
}  // namespace dsv4rt
