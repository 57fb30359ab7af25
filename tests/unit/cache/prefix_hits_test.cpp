// What hits, and where boundary states are taken for it.
#include "prefix_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::expect_refused;
using testing_cache::kEndsOnly;
using testing_cache::kEveryUnit;
using testing_cache::kNoStates;
using testing_cache::kUnit;
using testing_cache::prefix_cache;
using testing_cache::PrefixTestCache;
using testing_cache::token_ids;

TEST(PrefixHits, AtEveryBoundaryBelowTheLastToken) {
  PrefixTestCache cache = prefix_cache();
  const std::vector<std::int32_t> ids = token_ids(1200);
  cache.visit(ids);
  for (std::int64_t tokens = 1; tokens <= 1152; ++tokens) {
    const std::vector<std::int32_t> prompt(ids.begin(), ids.begin() + tokens);
    const PrefixStart start = cache.start(prompt);
    const std::int64_t expected = (tokens - 1) / kUnit * kUnit;  // the last token has to be run
    ASSERT_EQ(start.hit_tokens, expected) << tokens;
    ASSERT_EQ(*cache.manager->length(start.sequence), expected);
    ASSERT_EQ(start.restore.boundary, expected);
    ASSERT_TRUE(cache.manager->release(start.sequence).ok());
  }
  ASSERT_TRUE(cache.manager->check_invariants().ok());
}

TEST(PrefixHits, WholeUnitsOnly) {
  PrefixTestCache cache = prefix_cache();
  EXPECT_EQ(cache.manager->prefix_unit_tokens(), kUnit) << "the smallest prefix that can hit";
  const std::vector<std::int32_t> ids = token_ids(500);
  cache.visit(ids);
  for (const std::size_t changed : {0U, 1U, 127U, 128U, 200U, 255U, 256U, 383U, 384U, 499U}) {
    std::vector<std::int32_t> other = ids;
    other[changed] = 99'999;
    const auto common = static_cast<std::int64_t>(changed) / kUnit * kUnit;
    EXPECT_EQ(cache.hit(other), std::min<std::int64_t>(common, 384)) << changed;
  }
  EXPECT_EQ(cache.hit(token_ids(128)), 0) << "one unit exactly: its last token has to be run";
  EXPECT_EQ(cache.hit(token_ids(129)), 128);
  EXPECT_EQ(cache.hit({}), 0);
}

// However the prompt was cut, and however what follows the hit is.
TEST(PrefixHits, AfterPromptsInAnyChunks) {
  const std::vector<std::int32_t> ids = token_ids(1100);
  for (const std::size_t chunk : {1U, 7U, 64U, 127U, 128U, 129U, 200U, 512U, 1100U}) {
    PrefixTestCache cache = prefix_cache({.draft_budget = 3});
    cache.visit(ids, {});
    EXPECT_EQ(cache.hit(ids), 1024) << chunk;
    for (const std::size_t again : {1U, 100U, 128U, 700U}) {
      const PrefixStart start = cache.start(ids);
      ASSERT_EQ(start.hit_tokens, 1024);
      cache.run(start.sequence, ids, again);
      ASSERT_TRUE(cache.manager->release(start.sequence).ok());
    }
    PrefixTestCache cut = prefix_cache({.draft_budget = 3});
    const PrefixStart start = cut.start(ids);
    cut.run(start.sequence, ids, chunk);
    EXPECT_EQ(cut.kept_boundaries(ids), (std::vector<std::int64_t>{128, 256, 384, 512, 640, 768, 896, 1024})) << chunk;
  }
}

TEST(PrefixHits, TheOwnTokensOfALiveSequenceHitToo) {
  PrefixTestCache cache = prefix_cache();
  const std::vector<std::int32_t> ids = token_ids(700);
  const PrefixStart first = cache.start(ids);
  cache.run(first.sequence, ids);
  const PrefixStart second = cache.start(ids);
  EXPECT_EQ(second.hit_tokens, 640);
  cache.run(second.sequence, ids);
  cache.run(first.sequence, token_ids(900));
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

TEST(PrefixHits, WithoutIdsNothingIsKept) {
  PrefixTestCache cache = prefix_cache();
  ASSERT_TRUE(cache.append(cache.create(), 600).ok());
  EXPECT_EQ(cache.manager->prefix_stats().units_stored, 0);
  const std::vector<std::int32_t> ids = token_ids(600);
  const PrefixStart start = cache.start(ids);
  cache.run(start.sequence, std::span(ids).first(300));
  ASSERT_TRUE(cache.append(start.sequence, 100).ok());  // a step without ids ends it
  EXPECT_EQ(cache.manager->prefix_stats().sequences_detached, 1);
  ASSERT_TRUE(cache.feed(start.sequence, std::span(ids).subspan(400)).ok());
  EXPECT_EQ(cache.manager->prefix_stats().kept_units, 2);
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

TEST(PrefixHits, PoliciesSayWhichBoundariesHaveStates) {
  const std::vector<std::int32_t> ids = token_ids(1500);
  struct Case {
    PrefixPolicy policy;
    std::int64_t prompt;
    std::vector<std::int64_t> boundaries;
  };
  for (const Case& c : {
           Case{kEndsOnly, 1000, {896, 1408}},
           Case{kEndsOnly, 1024, {896, 1408}},  // the prompt again hits below its last token
           Case{kEndsOnly, 1025, {1024, 1408}},
           Case{kEndsOnly, 1500, {1408}},
           Case{kEveryUnit, 1000, {128, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1408}},
           Case{{.interval_tokens = 512}, 1000, {512, 896, 1024, 1408}},
           Case{{.interval_tokens = 300}, 1000, {384, 768, 896, 1152, 1408}},  // rounded up to whole units
           Case{{.interval_tokens = 512, .prompt_end = false, .output_end = false}, 1000, {512, 1024}},
           Case{{.interval_tokens = 0, .prompt_end = true, .output_end = false}, 1000, {896}},
           Case{{.interval_tokens = 0, .prompt_end = false, .output_end = true}, 1000, {1408}},
           Case{kNoStates, 1000, {}},
       }) {
    for (const std::size_t chunk : {1U, 5U, 100U, 128U, 333U, 1500U}) {
      PrefixTestCache cache = prefix_cache({.draft_budget = 4});
      const PrefixStart start =
          cache.start(std::span(ids).first(static_cast<std::size_t>(c.prompt)), {.policy = c.policy});
      cache.run(start.sequence, std::span(ids).first(static_cast<std::size_t>(c.prompt)), chunk);
      cache.run(start.sequence, ids, chunk);
      ASSERT_TRUE(cache.manager->release(start.sequence).ok());
      EXPECT_EQ(cache.kept_boundaries(ids), c.boundaries) << "prompt " << c.prompt << ", chunks of " << chunk;
    }
  }
}

// Whoever asks again for a prompt, or for a prompt and its output, finds a state as deep as tokens are kept, whatever
// steps brought them: with drafts rejected at, before and across boundaries.
TEST(PrefixHits, StoreMaskIsASupersetOfTheLookupSet) {
  for (const std::int32_t budget : {0, 1, 4, 8}) {
    for (const std::int64_t prompt_tokens : {1, 127, 128, 129, 250, 256, 257, 500}) {
      PrefixTestCache cache = prefix_cache({.draft_budget = budget, .policy = kEndsOnly});
      const std::vector<std::int32_t> ids = token_ids(900);
      const std::vector<std::int32_t> wrong = token_ids(16, 5);
      const std::span<const std::int32_t> prompt = std::span(ids).first(static_cast<std::size_t>(prompt_tokens));
      const PrefixStart start = cache.start(prompt);
      cache.run(start.sequence, prompt, 100);
      for (auto done = static_cast<std::size_t>(prompt_tokens); done < 700;) {
        // Some right drafts, some wrong ones that are rejected.
        const std::size_t right = 1 + done % (static_cast<std::size_t>(budget) + 1);
        std::vector<std::int32_t> step(ids.begin() + static_cast<std::ptrdiff_t>(done),
                                       ids.begin() + static_cast<std::ptrdiff_t>(done + right));
        step.insert(step.end(), wrong.begin(), wrong.begin() + budget + 1 - static_cast<std::ptrdiff_t>(right));
        ASSERT_TRUE(cache.feed(start.sequence, step, static_cast<std::int32_t>(right)).ok());
        done += right;
        ASSERT_EQ(cache.hit(prompt), (prompt_tokens - 1) / kUnit * kUnit);
        const std::vector<std::int32_t> next_turn(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(done) + 1);
        ASSERT_EQ(cache.hit(next_turn), static_cast<std::int64_t>(done) / kUnit * kUnit)
            << "prompt " << prompt_tokens << ", " << done << " tokens, drafts " << budget;
      }
      ASSERT_TRUE(cache.manager->check_invariants().ok());
    }
  }
}

// A step so long that no ring holds the last boundary below what is accepted of it.
TEST(PrefixHits, RejectedDraftsOfALongStepLeaveAStateBelowThem) {
  for (const std::int32_t rejected : {0, 1, 2, 3, 4, 5}) {
    PrefixTestCache cache = prefix_cache({.draft_budget = 4, .policy = kEndsOnly});
    const std::vector<std::int32_t> ids = token_ids(300);
    const PrefixStart start = cache.start(std::span(ids).first(10));
    ASSERT_TRUE(cache.feed(start.sequence, std::span(ids).first(10)).ok());
    ASSERT_TRUE(cache.feed(start.sequence, std::span(ids).subspan(10, 248), 248 - rejected).ok());  // to 258
    EXPECT_EQ(cache.hit(ids), rejected <= 2 ? 256 : 128) << rejected;
    EXPECT_TRUE(cache.manager->check_invariants().ok());
  }
}

TEST(PrefixHits, ArgumentsAreChecked) {
  PrefixTestCache cache = prefix_cache();
  const std::vector<std::int32_t> negative{1, 2, -3};
  const auto before = cache.counts();
  expect_refused(cache.manager->create_sequence(negative, {}).status(), StatusCode::kInvalidArgument,
                 {"create_sequence", "token_ids[2] = -3"});
  expect_refused(cache.manager->prefix_lookup(negative, {}).status(), StatusCode::kInvalidArgument, {"prefix_lookup"});
  expect_refused(cache.manager->pin_prefix(negative, {}).status(), StatusCode::kInvalidArgument, {"pin_prefix"});
  expect_refused(cache.manager->unpin_prefix(negative, {}).status(), StatusCode::kInvalidArgument, {"unpin_prefix"});
  expect_refused(cache.manager->evict_prefix(negative, {}).status(), StatusCode::kInvalidArgument, {"evict_prefix"});
  expect_refused(cache.manager->create_sequence(token_ids(4097), {}).status(), StatusCode::kInvalidArgument,
                 {"4097 token ids", "4096"});
  expect_refused(cache.manager->create_sequence(token_ids(9), {.policy = PrefixPolicy{.interval_tokens = -1}}).status(),
                 StatusCode::kInvalidArgument, {"interval_tokens = -1"});
  expect_refused(cache.manager->create_sequence(token_ids(9), {.reserve_tokens = 5000}).status(),
                 StatusCode::kInvalidArgument, {"reserve_tokens = 5000"});
  EXPECT_EQ(cache.counts(), before);
}

TEST(PrefixHits, WithoutAPrefixCacheCallsSaySo) {
  const testing_cache::TestCache cache = testing_cache::small_cache();
  KVCacheManager& manager = *cache.manager;
  for (const Status& status :
       {manager.create_sequence(token_ids(3), {}).status(), manager.branch({}, 128).status(),
        manager.truncate_to_boundary({}, 128).status(), manager.prefix_lookup(token_ids(3), {}).status(),
        manager.pin_prefix(token_ids(3), {}).status(), manager.unpin_prefix(token_ids(3), {}).status(),
        manager.evict_prefix(token_ids(3), {}).status(), manager.clear_prefixes()}) {
    expect_refused(status, StatusCode::kFailedPrecondition, {"boundary_states"});
  }
  EXPECT_EQ(manager.prefix_unit_tokens(), 0);
  EXPECT_TRUE(manager.captures().empty() && manager.boundary_copies().empty() && manager.prefix_events().empty());
  EXPECT_EQ(manager.prefix_stats().lookups, 0);
}

}  // namespace
}  // namespace dsv4rt
