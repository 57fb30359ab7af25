// Blocks that prefixes and sequences share: who copies, who writes in place, and what cutting and branching do.
#include "prefix_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::expect_refused;
using testing_cache::kEndsOnly;
using testing_cache::kUnit;
using testing_cache::prefix_cache;
using testing_cache::PrefixTestCache;
using testing_cache::token_ids;

constexpr int kHca = 2;  // pool of one 512-token block

class PrefixSharing : public testing::Test {
 protected:
  // Block copies of one step of these ids.
  std::int32_t copies_of(SequenceId sequence, std::span<const std::int32_t> ids) {
    const std::vector<StepEntry> batch{
        {.sequence = sequence, .tokens = static_cast<std::int32_t>(ids.size()), .token_ids = ids.data()}};
    const Result<StepPlan> step = cache_.manager->prepare_forward(batch);
    EXPECT_TRUE(step.ok()) << step.status().to_string();
    EXPECT_TRUE(cache_.manager->commit(step->serial).ok());
    EXPECT_TRUE(cache_.manager->check_invariants().ok()) << cache_.manager->check_invariants().to_string();
    return step->counts.block_copies;
  }
  [[nodiscard]] std::int32_t hca_block(SequenceId sequence) const { return cache_.blocks(sequence, kHca)[0]; }

  PrefixTestCache cache_ = prefix_cache({.draft_budget = 4});
  const std::vector<std::int32_t> ids_ = token_ids(2000);
};

// The sequence that computed a unit goes on behind it; whoever begins there copies the block that both have begun.
TEST_F(PrefixSharing, TheWriterGoesOnInPlaceAHitCopies) {
  const PrefixStart writer = cache_.start(ids_);
  const std::span<const std::int32_t> ids(ids_);
  EXPECT_EQ(copies_of(writer.sequence, ids.first(128)), 0);
  const std::int32_t block = hca_block(writer.sequence);
  EXPECT_EQ(copies_of(writer.sequence, ids.subspan(128, 128)), 0);
  const PrefixStart hit = cache_.start(ids.first(129));
  ASSERT_EQ(hit.hit_tokens, 128);
  EXPECT_EQ(hca_block(hit.sequence), block);
  EXPECT_EQ(copies_of(hit.sequence, token_ids(128, 4)), 1);
  EXPECT_NE(hca_block(hit.sequence), block);
  EXPECT_EQ(copies_of(writer.sequence, ids.subspan(256, 128)), 0) << "alone again, behind the rows of the units";
  EXPECT_EQ(hca_block(writer.sequence), block);
}

// Somebody began where the writer stands: its next row must not change what they read.
TEST_F(PrefixSharing, AttachingMarksTheWritersLastBlock) {
  const PrefixStart writer = cache_.start(ids_);
  const std::span<const std::int32_t> ids(ids_);
  ASSERT_EQ(copies_of(writer.sequence, ids.first(130)), 0);
  const PrefixStart hit = cache_.start(ids.first(129));
  ASSERT_EQ(hca_block(hit.sequence), hca_block(writer.sequence));
  EXPECT_EQ(copies_of(writer.sequence, ids.subspan(130, 126)), 1);
  EXPECT_NE(hca_block(hit.sequence), hca_block(writer.sequence));
  EXPECT_EQ(copies_of(hit.sequence, ids.subspan(128, 128)), 0) << "the units went along with the copy";
}

TEST_F(PrefixSharing, GoingBackBelowAKeptBoundaryCopies) {
  const PrefixStart writer = cache_.start(ids_);
  const std::span<const std::int32_t> ids(ids_);
  ASSERT_EQ(copies_of(writer.sequence, ids.first(258)), 0);
  const std::int32_t block = hca_block(writer.sequence);
  ASSERT_TRUE(cache_.manager->truncate(writer.sequence, 254).ok());
  ASSERT_TRUE(cache_.manager->check_invariants().ok());
  EXPECT_GE(copies_of(writer.sequence, token_ids(4, 7)), 1) << "row 1 of the block is the second unit's";
  EXPECT_NE(hca_block(writer.sequence), block);
  EXPECT_EQ(cache_.hit(ids.first(300)), 256) << "what was kept still is";
  const PrefixStart hit = cache_.start(ids.first(300));
  EXPECT_EQ(hca_block(hit.sequence), block);
}

// The newest copy of a block serves the units before, too: a path never needs two blocks for the same rows.
TEST_F(PrefixSharing, AncestorsAdoptTheNewerBlock) {
  const std::span<const std::int32_t> ids(ids_);
  cache_.visit(ids.first(140));
  const PrefixStart old = cache_.start(ids.first(140));
  const std::int32_t first = hca_block(old.sequence);
  EXPECT_EQ(copies_of(old.sequence, ids.subspan(128, 128)), 0) << "alone behind the unit's row: in place";
  const PrefixStart other = cache_.start(ids.first(129));
  ASSERT_EQ(other.hit_tokens, 128);
  EXPECT_EQ(hca_block(other.sequence), first);
  EXPECT_EQ(copies_of(other.sequence, token_ids(128, 8)), 1);
  const std::int32_t second = hca_block(other.sequence);
  const PrefixStart again = cache_.start(ids.first(129));
  EXPECT_EQ(hca_block(again.sequence), second) << "unit 1 went over to the newer block";
  std::vector<std::int32_t> deeper(ids.begin(), ids.begin() + 257);
  const PrefixStart deep = cache_.start(deeper);
  EXPECT_EQ(deep.hit_tokens, 256);
  EXPECT_EQ(hca_block(deep.sequence), first) << "unit 2 has its own";
  // The units leave one after the other and every block becomes free.
  for (const SequenceId sequence : {old.sequence, other.sequence, again.sequence, deep.sequence}) {
    ASSERT_TRUE(cache_.manager->release(sequence).ok());
  }
  ASSERT_TRUE(cache_.manager->check_invariants().ok());
  EXPECT_EQ(cache_.manager->usage(kHca).cached, 2);
  ASSERT_TRUE(cache_.manager->clear_prefixes().ok());
  EXPECT_EQ(cache_.manager->usage(kHca).free, cache_.manager->usage(kHca).total);
}

// Blocks smaller than units: a sequence that goes back a little has a sibling unit with the same first blocks.
TEST_F(PrefixSharing, SiblingsShareTheBlocksBeforeTheyPart) {
  const PrefixStart writer = cache_.start(ids_);
  const std::span<const std::int32_t> ids(ids_);
  ASSERT_EQ(copies_of(writer.sequence, ids.first(129)), 0);
  const std::vector<std::int32_t> before = cache_.blocks(writer.sequence, 0);
  ASSERT_TRUE(cache_.manager->truncate(writer.sequence, 125).ok());
  ASSERT_GE(copies_of(writer.sequence, token_ids(3, 9)), 1);
  const std::vector<std::int32_t> after = cache_.blocks(writer.sequence, 0);
  EXPECT_EQ(after[0], before[0]);
  EXPECT_NE(after[1], before[1]);
  std::vector<std::int32_t> other(ids.begin(), ids.begin() + 125);
  for (const std::int32_t id : token_ids(4, 9)) other.push_back(id);
  for (const std::span<const std::int32_t> evicted : {ids.first(129), std::span<const std::int32_t>(other)}) {
    EXPECT_EQ(*cache_.manager->evict_prefix(evicted, {}), kUnit);
    EXPECT_TRUE(cache_.manager->check_invariants().ok()) << cache_.manager->check_invariants().to_string();
  }
}

// A hit may be cut as far back as its rings serve it: they hold the boundary state, not what is before.
TEST_F(PrefixSharing, StaleWindowRing) {
  cache_.visit(ids_);
  const PrefixStart hit = cache_.start(ids_);
  ASSERT_EQ(hit.hit_tokens, 1920);
  EXPECT_EQ(*cache_.manager->earliest_truncation(hit.sequence), 1920);
  for (const std::int64_t length : {1919, 1916, 1915, 1793, 1792}) {
    expect_refused(cache_.manager->truncate(hit.sequence, length), StatusCode::kFailedPrecondition,
                   {"earliest length possible is 1920"});
  }
  for (std::int64_t end = 1921; end < 1940; ++end) {
    ASSERT_TRUE(cache_.feed(hit.sequence, std::span(ids_).subspan(static_cast<std::size_t>(end) - 1, 1)).ok());
    EXPECT_EQ(*cache_.manager->earliest_truncation(hit.sequence), std::max<std::int64_t>(1920, end - 5)) << end;
  }
  EXPECT_TRUE(cache_.manager->truncate(hit.sequence, 0).ok()) << "empty rings serve an empty sequence";
  const Result<BoundaryCopyPlan> back = cache_.manager->truncate_to_boundary(hit.sequence, 0);
  expect_refused(back.status(), StatusCode::kFailedPrecondition, {"no boundary state"});
}

TEST_F(PrefixSharing, CuttingToAKeptBoundaryWorksHoweverFarBackItIs) {
  const PrefixStart start = cache_.start(ids_);
  cache_.run(start.sequence, ids_);
  for (const std::int64_t length : {1920, 1024, 128}) {
    const Result<BoundaryCopyPlan> copy = cache_.manager->truncate_to_boundary(start.sequence, length);
    ASSERT_TRUE(copy.ok()) << copy.status().to_string();
    EXPECT_EQ(copy->slot, static_cast<std::int32_t>(start.sequence.index));
    EXPECT_EQ(copy->boundary, length);
    EXPECT_EQ(*cache_.manager->length(start.sequence), length);
    EXPECT_EQ(*cache_.manager->earliest_truncation(start.sequence), length);
    ASSERT_TRUE(cache_.manager->check_invariants().ok());
  }
  const auto before = cache_.counts();
  expect_refused(cache_.manager->truncate_to_boundary(start.sequence, 100).status(), StatusCode::kFailedPrecondition,
                 {"length 100", "nearest one below is at 0"});
  expect_refused(cache_.manager->truncate_to_boundary(start.sequence, 256).status(), StatusCode::kInvalidArgument,
                 {"0 .. 128"});
  EXPECT_EQ(cache_.counts(), before);
  cache_.run(start.sequence, ids_);
  EXPECT_EQ(cache_.manager->prefix_stats().kept_units, 15) << "the same units again";
}

TEST_F(PrefixSharing, BranchesBeginAtAnyKeptBoundaryOfTheirParent) {
  cache_.settings.policy = {.interval_tokens = 512};
  cache_.rebuild();
  const PrefixStart start = cache_.start(ids_);
  cache_.run(start.sequence, ids_);
  const auto before = cache_.counts();
  expect_refused(cache_.manager->branch(start.sequence, 640).status(), StatusCode::kFailedPrecondition,
                 {"branch", "640", "nearest one below is at 512"});
  expect_refused(cache_.manager->branch(start.sequence, 0).status(), StatusCode::kFailedPrecondition, {"branch"});
  expect_refused(cache_.manager->branch(start.sequence, 2001).status(), StatusCode::kInvalidArgument, {"0 .. 2000"});
  expect_refused(cache_.manager->branch(start.sequence, 512, -1).status(), StatusCode::kInvalidArgument, {"-1"});
  expect_refused(cache_.manager->branch({99, 1}, 512).status(), StatusCode::kStaleHandle, {});
  EXPECT_EQ(cache_.counts(), before);
  for (const std::int64_t length : {512, 1024, 1920}) {
    const Result<PrefixStart> branch = cache_.manager->branch(start.sequence, length);
    ASSERT_TRUE(branch.ok()) << branch.status().to_string();
    EXPECT_EQ(branch->hit_tokens, length);
    std::vector<std::int32_t> blocks = cache_.blocks(start.sequence, 0);
    blocks.resize(static_cast<std::size_t>(length) / 64);
    EXPECT_EQ(cache_.blocks(branch->sequence, 0), blocks);
    std::vector<std::int32_t> other(ids_.begin(), ids_.begin() + length);
    for (const std::int32_t id : token_ids(200, 20 + static_cast<std::int32_t>(length))) other.push_back(id);
    cache_.run(branch->sequence, other);
    EXPECT_EQ(cache_.manager->prefix_lookup(other, {})->matched_tokens, length + 128);
    ASSERT_TRUE(cache_.manager->release(branch->sequence).ok());
  }
}

// Nothing of the cache changes while a step is outstanding.
TEST_F(PrefixSharing, AStepKeepsOthersOut) {
  cache_.visit(ids_);
  const PrefixStart start = cache_.start(ids_);
  const std::vector<StepEntry> batch{{.sequence = start.sequence, .tokens = 80, .token_ids = ids_.data() + 1920}};
  const Result<StepPlan> step = cache_.manager->prepare_forward(batch);
  ASSERT_TRUE(step.ok());
  const auto before = cache_.counts();
  KVCacheManager& manager = *cache_.manager;
  for (const Status& status :
       {manager.create_sequence(ids_, {}).status(), manager.branch(start.sequence, 512).status(),
        manager.truncate_to_boundary(start.sequence, 512).status(), manager.pin_prefix(ids_, {}).status(),
        manager.unpin_prefix(ids_, {}).status(), manager.evict_prefix(ids_, {}).status(), manager.clear_prefixes()}) {
    expect_refused(status, StatusCode::kFailedPrecondition, {"outstanding"});
  }
  EXPECT_EQ(cache_.counts(), before);
  EXPECT_EQ(cache_.hit(ids_), 1920) << "asking is allowed";
  EXPECT_TRUE(manager.commit(step->serial).ok());
}

}  // namespace
}  // namespace dsv4rt
