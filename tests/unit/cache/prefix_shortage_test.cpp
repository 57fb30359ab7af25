// When blocks run short: cached ones make way, reservations and pins hold.
#include "prefix_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::expect_refused;
using testing_cache::prefix_cache;
using testing_cache::PrefixTestCache;
using testing_cache::salt;
using testing_cache::token_ids;

// 2,048 tokens in blocks of 128 and 512, not a block more.
PrefixTestCache tight_cache(std::int32_t sequences = 8, std::int64_t quota_tokens = 0) {
  PrefixTestCache cache = prefix_cache({.csa_rows_per_block = 32,
                                        .sequences = sequences,
                                        .context = 2048,
                                        .pool_tokens = 2048,
                                        .quota_tokens = quota_tokens});
  cache.plan.pool_blocks = {1 + 16, 1 + 16, 1 + 4};
  cache.rebuild();
  return cache;
}

TEST(PrefixShortage, DrainedPoolWithEverythingCachedStillAdmits) {
  PrefixTestCache cache = tight_cache();
  cache.visit(token_ids(2048, 1));
  EXPECT_EQ(cache.manager->usage(0).free, 0);
  EXPECT_EQ(cache.manager->usage(0).cached, 16);
  EXPECT_EQ(cache.manager->usage(2).free, 0);
  EXPECT_TRUE(cache.manager->can_admit(2048).ok());
  const std::vector<std::int32_t> ids = token_ids(2048, 2);
  const PrefixStart start = cache.start(ids, {.reserve_tokens = 2048});
  EXPECT_EQ(cache.manager->usage(0).reserved, 16);
  EXPECT_EQ(cache.manager->usage(0).cached, 16) << "nothing leaves before its blocks are needed";
  cache.run(start.sequence, ids, 100);
  EXPECT_EQ(cache.manager->usage(0).live, 16);
  const PrefixStats stats = cache.manager->prefix_stats();
  EXPECT_EQ(stats.units_removed_for_space, 16);
  EXPECT_EQ(stats.sequences_detached, 0);
  // A sequence that brings its content needs all blocks at once.
  ASSERT_TRUE(cache.manager->release(start.sequence).ok());
  EXPECT_EQ(cache.manager->usage(0).cached, 16);
  EXPECT_TRUE(cache.manager->restore_sequence(2048).ok());
  EXPECT_EQ(cache.manager->usage(0).live, 16);
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

// Prompts that come once, many times more than fit, against one that comes now and then.
TEST(PrefixShortage, ChurnOfShortSequencesDoesNotFlushALongSharedPrefix) {
  PrefixTestCache cache = tight_cache();
  const std::vector<std::int32_t> shared = token_ids(1025, 1);
  cache.visit(shared);
  ASSERT_EQ(cache.visit(shared), 1024);
  for (std::int32_t i = 0; i < 60; ++i) {
    cache.visit(token_ids(300, 10 + i));
    ASSERT_EQ(cache.hit(shared), 1024) << i;
    if (i % 8 == 7) {
      ASSERT_EQ(cache.visit(shared), 1024) << i;
    }
  }
  EXPECT_GE(cache.manager->prefix_stats().units_removed_for_space, 100);
}

// The same with states short instead of blocks: the deepest state of the shared prefix stays.
TEST(PrefixShortage, ChurnDoesNotTakeTheStateOfASharedPrefix) {
  PrefixTestCache cache = prefix_cache({.context = 2048, .pool_tokens = 65536, .states = 4});
  const std::vector<std::int32_t> shared = token_ids(1025, 1);
  cache.visit(shared);
  ASSERT_EQ(cache.visit(shared), 1024);
  for (std::int32_t i = 0; i < 100; ++i) {
    cache.visit(token_ids(300, 10 + i));
    ASSERT_EQ(cache.hit(shared), 1024) << i;
  }
  EXPECT_GE(cache.manager->prefix_stats().states_removed, 190);
}

TEST(PrefixShortage, EvictionNeverFailsOnceBlocksArePromised) {
  PrefixTestCache cache = tight_cache();
  const PrefixStart reserved = cache.start(token_ids(2048, 1), {.reserve_tokens = 1024});
  for (std::int32_t i = 0; i < 20; ++i) cache.visit(token_ids(1000, 10 + i));
  EXPECT_EQ(cache.manager->usage(0).free + cache.manager->usage(0).cached, 16);
  const PrefixStart other = cache.start(token_ids(1024, 2));
  cache.run(other.sequence, token_ids(1024, 2), 64);
  expect_refused(cache.feed(other.sequence, token_ids(128, 3)), StatusCode::kResourceExhausted,
                 {"8 of those reserved"});
  cache.run(reserved.sequence, token_ids(1024, 1), 1);  // token by token, never refused
  EXPECT_EQ(cache.manager->usage(0).live, 16);
}

// Cached blocks that a hit makes live are no longer there for those who reserved them: a shorter hit, or none.
TEST(PrefixShortage, AHitNeverBreaksAReservation) {
  PrefixTestCache cache = tight_cache();
  const std::vector<std::int32_t> ids = token_ids(1025, 1);
  cache.visit(ids);
  const SequenceId reserved = cache.create(1024);  // 8 and 2 blocks of 16 and 4: just what the prefix leaves
  const PrefixStart whole = cache.start(ids);
  EXPECT_EQ(whole.hit_tokens, 1024);
  ASSERT_TRUE(cache.manager->release(whole.sequence).ok());
  ASSERT_TRUE(cache.manager->release(reserved).ok());
  const SequenceId greedy = cache.create(1536);  // 12 of 16, 3 of 4
  const PrefixStart shorter = cache.start(ids);
  EXPECT_EQ(shorter.hit_tokens, 512);
  EXPECT_TRUE(cache.manager->check_invariants().ok());
  ASSERT_TRUE(cache.manager->release(shorter.sequence).ok());
  ASSERT_TRUE(cache.manager->release(greedy).ok());
  const SequenceId greediest = cache.create(2048);
  const auto kept = cache.manager->prefix_stats().kept_units;
  const PrefixStart miss = cache.start(ids);
  EXPECT_EQ(miss.hit_tokens, 0);
  EXPECT_EQ(cache.manager->prefix_stats().kept_units, kept);
  ASSERT_TRUE(cache.append(greediest, 2048).ok());
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

// Sharing the last block of a sequence with a reservation makes it owe a copy: that has to be there as well.
TEST(PrefixShortage, SharingAReservedSequencesLastBlockIsPaidFor) {
  PrefixTestCache cache = tight_cache();
  const std::vector<std::int32_t> ids = token_ids(2048, 1);
  const PrefixStart reserved = cache.start(ids, {.reserve_tokens = 2048});
  cache.run(reserved.sequence, std::span(ids).first(200));
  const PrefixStart other = cache.start(std::span(ids).first(129));
  EXPECT_EQ(other.hit_tokens, 0) << "every block is somebody's";
  ASSERT_TRUE(cache.manager->release(other.sequence).ok());
  cache.run(reserved.sequence, ids, 77);
  EXPECT_EQ(*cache.manager->length(reserved.sequence), 2048);

  PrefixTestCache roomy = prefix_cache();
  const PrefixStart writer = roomy.start(ids, {.reserve_tokens = 512});
  roomy.run(writer.sequence, std::span(ids).first(130));
  const std::int64_t before = roomy.manager->usage(2).reserved;
  EXPECT_EQ(roomy.start(std::span(ids).first(129)).hit_tokens, 128);
  EXPECT_EQ(roomy.manager->usage(2).reserved, before + 1);
  roomy.run(writer.sequence, std::span(ids).first(512));
}

// Making room for a copy may evict the very unit that it is for: the block is written in place then, and rolling back
// finds it where it was.
TEST(PrefixShortage, AStepThatEvictsWhatItWasToCopyWritesInPlace) {
  PrefixTestCache cache =
      prefix_cache({.csa_rows_per_block = 64, .draft_budget = 4, .context = 256, .pool_tokens = 256});
  cache.plan.pool_blocks = {1 + 2, 1 + 2, 1 + 2};
  cache.rebuild();
  const std::vector<std::int32_t> ids = token_ids(256, 1);
  const PrefixStart start = cache.start(ids);
  cache.run(start.sequence, std::span(ids).first(130));
  cache.visit(token_ids(130, 2));  // the second block: cached, and used later than the first
  ASSERT_TRUE(cache.manager->truncate(start.sequence, 126).ok());
  const std::vector<std::int32_t> blocks = cache.blocks(start.sequence, 0);
  const std::vector<std::int32_t> next = token_ids(2, 3);
  const std::vector<StepEntry> batch{{.sequence = start.sequence, .tokens = 2, .token_ids = next.data()}};
  for (const StepProgress progress : {StepProgress::kPrepared, StepProgress::kStarted}) {
    const Result<StepPlan> step = cache.manager->prepare_forward(batch);
    ASSERT_TRUE(step.ok()) << step.status().to_string();
    EXPECT_EQ(step->counts.block_copies, 0);
    EXPECT_TRUE(cache.manager->check_invariants().ok());
    ASSERT_TRUE(cache.manager->rollback(step->serial, progress).ok());
    EXPECT_EQ(cache.blocks(start.sequence, 0), blocks);
    EXPECT_TRUE(cache.manager->check_invariants().ok());
  }
  EXPECT_EQ(cache.manager->prefix_stats().units_removed_for_space, 2);
}

// A copy that cannot be had is refused: the unit stays whole.
TEST(PrefixShortage, ACopyThatCannotBeHadIsRefused) {
  PrefixTestCache cache =
      prefix_cache({.csa_rows_per_block = 64, .draft_budget = 4, .context = 256, .pool_tokens = 256});
  cache.plan.pool_blocks = {1 + 1, 1 + 1, 1 + 2};
  cache.rebuild();
  const std::vector<std::int32_t> ids = token_ids(256, 1);
  const PrefixStart start = cache.start(ids);
  cache.run(start.sequence, std::span(ids).first(130));
  ASSERT_TRUE(cache.manager->truncate(start.sequence, 126).ok());
  const auto before = cache.counts();
  expect_refused(cache.feed(start.sequence, token_ids(2, 3)), StatusCode::kResourceExhausted, {"CSA_KV"});
  EXPECT_EQ(cache.counts(), before);
  EXPECT_TRUE(cache.manager->check_invariants().ok());
  ASSERT_EQ(*cache.manager->evict_prefix(ids, {}), 128);
  EXPECT_TRUE(cache.feed(start.sequence, token_ids(2, 3)).ok());
}

TEST(PrefixShortage, PinnedBlocksStayAndAreRefusedToNobodyWhoReservedThem) {
  PrefixTestCache cache = tight_cache();
  const std::vector<std::int32_t> ids = token_ids(1025, 1);
  cache.visit(ids);
  const SequenceId reserved = cache.create(1536);
  const auto before = cache.counts();
  expect_refused(cache.manager->pin_prefix(ids, {}).status(), StatusCode::kResourceExhausted,
                 {"pin_prefix", "reserved"});
  EXPECT_EQ(cache.counts(), before);
  EXPECT_TRUE(cache.manager->check_invariants().ok());
  ASSERT_TRUE(cache.manager->release(reserved).ok());
  EXPECT_EQ(*cache.manager->pin_prefix(ids, {}), 1024);
  EXPECT_EQ(*cache.manager->pin_prefix(std::span(ids).first(512), {}), 512) << "all of what is given";
  EXPECT_EQ(cache.manager->usage(0).pinned, 8);
  EXPECT_EQ(cache.manager->usage(2).pinned, 2);
  EXPECT_EQ(cache.manager->prefix_stats().pinned_units, 8);
  expect_refused(cache.manager->can_admit(1028), StatusCode::kResourceExhausted, {"1 blocks"});
  EXPECT_TRUE(cache.manager->can_admit(1024).ok());
  for (std::int32_t i = 0; i < 10; ++i) cache.visit(token_ids(1000, 10 + i));
  EXPECT_EQ(cache.hit(ids), 1024);
  EXPECT_EQ(*cache.manager->evict_prefix(ids, {}), 0) << "pinned";
  ASSERT_TRUE(cache.manager->clear_prefixes().ok());
  EXPECT_EQ(cache.manager->prefix_stats().kept_units, 8);
  EXPECT_EQ(*cache.manager->unpin_prefix(ids, {}), 1024) << "the longest first";
  EXPECT_EQ(cache.manager->usage(0).pinned, 4);
  EXPECT_EQ(*cache.manager->evict_prefix(ids, {}), 512) << "up to what is pinned";
  EXPECT_EQ(*cache.manager->unpin_prefix(ids, {}), 512);
  EXPECT_EQ(*cache.manager->unpin_prefix(ids, {}), 0);
  EXPECT_EQ(*cache.manager->pin_prefix(token_ids(500, 77), {}), 0) << "not there";
  ASSERT_TRUE(cache.manager->clear_prefixes().ok());
  EXPECT_EQ(cache.manager->usage(0).free, 16);
}

// The units that live sequences continue from leave last; the sequences keep their blocks and go on unkept.
TEST(PrefixShortage, UnitsInUseLeaveLastAndDetachTheirSequences) {
  PrefixTestCache cache = tight_cache();
  const std::vector<std::int32_t> mine = token_ids(600, 1);
  const PrefixStart live = cache.start(mine);
  cache.run(live.sequence, std::span(mine).first(512));
  cache.visit(token_ids(500, 2));  // newer, but nobody continues there
  const PrefixStart other = cache.start(token_ids(1500, 3));
  cache.run(other.sequence, std::span<const std::int32_t>(token_ids(1152, 3)));
  EXPECT_EQ(cache.hit(mine), 512);
  EXPECT_EQ(cache.hit(token_ids(500, 2)), 0);
  const auto blocks = cache.blocks(live.sequence, 0);
  cache.run(other.sequence, std::span<const std::int32_t>(token_ids(1500, 3)));
  EXPECT_EQ(cache.blocks(live.sequence, 0), blocks);
  EXPECT_EQ(*cache.manager->evict_prefix(mine, {}), 512);
  EXPECT_EQ(cache.manager->prefix_stats().sequences_detached, 1);
  EXPECT_EQ(cache.blocks(live.sequence, 0), blocks);
  ASSERT_TRUE(cache.manager->release(other.sequence).ok());
  cache.run(live.sequence, mine);
  EXPECT_EQ(cache.hit(mine), 0) << "what it computes now is not kept";
}

TEST(PrefixShortage, ATenantsQuotaIsItsOwn) {
  PrefixTestCache cache = tight_cache(8, 512);
  cache.visit(token_ids(400, 1), {.salt = salt("a")});
  for (std::int32_t i = 0; i < 10; ++i) {
    cache.visit(token_ids(300, 10 + i), {.salt = salt("b")});
    ASSERT_TRUE(cache.manager->check_invariants().ok());
  }
  EXPECT_EQ(cache.hit(token_ids(400, 1), salt("a")), 384);
  EXPECT_EQ(cache.hit(token_ids(300, 19), salt("b")), 256);
  EXPECT_EQ(cache.hit(token_ids(300, 18), salt("b")), 256);
  EXPECT_EQ(cache.hit(token_ids(300, 17), salt("b")), 0);
  const PrefixStats stats = cache.manager->prefix_stats();
  EXPECT_EQ(stats.kept_units, 3 + 4);
  EXPECT_EQ(stats.units_removed_by_quota, 16);
  EXPECT_EQ(stats.units_removed_for_space, 0);
  cache.visit(token_ids(1200, 3), {.salt = salt("b")});
  EXPECT_EQ(cache.manager->prefix_stats().kept_units, 3 + 4) << "a prompt longer than the quota keeps its beginning";
  EXPECT_EQ(cache.hit(token_ids(1200, 3), salt("b")), 512);
}

}  // namespace
}  // namespace dsv4rt
