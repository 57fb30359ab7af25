// How boundary states come to be, move and go.
#include "prefix_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::expect_refused;
using testing_cache::kEndsOnly;
using testing_cache::kNoStates;
using testing_cache::prefix_cache;
using testing_cache::PrefixTestCache;
using testing_cache::token_ids;

// Boundaries that rings serve after the step are copied then; those that they do not are put together inside it.
TEST(PrefixStates, LongStepsCaptureWhatRingsWillNotHold) {
  PrefixTestCache cache = prefix_cache({.draft_budget = 2});
  const std::vector<std::int32_t> ids = token_ids(1000);
  const PrefixStart start = cache.start(ids);
  ASSERT_TRUE(cache.feed(start.sequence, std::span(ids).first(100)).ok());
  EXPECT_TRUE(cache.captured.empty() && cache.manager->boundary_copies().empty());
  ASSERT_TRUE(cache.feed(start.sequence, std::span(ids).subspan(100, 414)).ok());  // to 514: 512 is still in the rings
  ASSERT_EQ(cache.captured.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(cache.captured[i].segment, 0);
    EXPECT_EQ(cache.captured[i].slot, static_cast<std::int32_t>(start.sequence.index));
    EXPECT_EQ(cache.captured[i].start, 100);
    EXPECT_EQ(cache.captured[i].boundary, 128 * (static_cast<std::int32_t>(i) + 1));
  }
  ASSERT_EQ(cache.manager->boundary_copies().size(), 1U);
  const BoundaryCopyPlan copy = cache.manager->boundary_copies()[0];
  EXPECT_EQ(copy.boundary, 512);
  EXPECT_EQ(copy.slot, static_cast<std::int32_t>(start.sequence.index));
  for (const PlannedCapture& capture : cache.captured) {
    EXPECT_NE(capture.state, copy.state);
    const PrefixStart hit = cache.start(std::span(ids).first(static_cast<std::size_t>(capture.boundary) + 1));
    EXPECT_EQ(hit.restore.state, capture.state) << "what the step filled is what a hit restores";
    ASSERT_TRUE(cache.manager->release(hit.sequence).ok());
  }
  EXPECT_TRUE(cache.manager->captures().empty()) << "no step is outstanding";
}

// Several sequences pass the same boundaries in one step: each unit gets the state of its own sequence, also behind one
// whose states are not needed because another with the same ids was first.
TEST(PrefixStates, CapturesBelongToTheirSequences) {
  PrefixTestCache cache = prefix_cache();
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<StepEntry> batch;
  for (std::int32_t i = 0; i < 3; ++i) {
    ids.push_back(token_ids(400, i / 2));
    const SequenceId sequence = cache.start(ids.back()).sequence;
    ASSERT_TRUE(cache.feed(sequence, std::span(ids.back()).first(static_cast<std::size_t>(10 + i))).ok());
    batch.push_back({.sequence = sequence, .tokens = 390 - i, .token_ids = nullptr});
  }
  for (std::size_t i = 0; i < 3; ++i) batch[2 - i].token_ids = ids[2 - i].data() + 12 - i;
  const Result<StepPlan> step = cache.manager->prepare_forward(batch);
  ASSERT_TRUE(step.ok()) << step.status().to_string();
  const std::vector<PlannedCapture> captures(cache.manager->captures().begin(), cache.manager->captures().end());
  ASSERT_EQ(captures.size(), 9U);
  ASSERT_TRUE(cache.manager->commit(step->serial).ok());
  for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(cache.manager->release(batch[i].sequence).ok());
  for (const PlannedCapture& capture : captures) {
    const auto i = static_cast<std::size_t>(capture.segment);
    if (i == 1) continue;
    EXPECT_EQ(capture.start, 10 + capture.segment);
    EXPECT_EQ(capture.slot, static_cast<std::int32_t>(batch[i].sequence.index));
    const PrefixStart hit = cache.start(std::span(ids[i]).first(static_cast<std::size_t>(capture.boundary) + 1));
    ASSERT_EQ(hit.hit_tokens, capture.boundary);
    EXPECT_EQ(hit.restore.state, capture.state);
    ASSERT_TRUE(cache.manager->release(hit.sequence).ok());
  }
}

TEST(PrefixStates, ARolledBackStepGivesItsCapturesBack) {
  PrefixTestCache cache = prefix_cache({.states = 3});
  const std::vector<std::int32_t> ids = token_ids(400);
  for (const StepProgress progress : {StepProgress::kPrepared, StepProgress::kStarted}) {
    const PrefixStart start = cache.start(ids);
    for (int round = 0; round < 5; ++round) {
      const std::vector<StepEntry> batch{{.sequence = start.sequence, .tokens = 400, .token_ids = ids.data()}};
      const Result<StepPlan> step = cache.manager->prepare_forward(batch);
      ASSERT_TRUE(step.ok());
      EXPECT_EQ(cache.manager->captures().size(), 3U);
      ASSERT_TRUE(cache.manager->check_invariants().ok());
      ASSERT_TRUE(cache.manager->rollback(step->serial, progress).ok());
      ASSERT_TRUE(cache.manager->check_invariants().ok());
    }
    ASSERT_TRUE(cache.manager->release(start.sequence).ok());
  }
  EXPECT_EQ(cache.manager->prefix_stats().states_refused, 0);
  EXPECT_EQ(cache.manager->prefix_stats().kept_units, 0);
}

// One state a sequence follows its output; the prompt's stays, and so does what others began with.
TEST(PrefixStates, TheStateOfTheOutputMovesAlong) {
  PrefixTestCache cache = prefix_cache({.policy = kEndsOnly});
  const std::vector<std::int32_t> ids = token_ids(1000);
  const PrefixStart start = cache.start(std::span(ids).first(200));
  for (std::size_t end = 200; end <= 1000; end += 40) {
    cache.run(start.sequence, std::span(ids).first(end), 8);
    EXPECT_LE(cache.manager->prefix_stats().kept_states, 2) << end;
    const auto last = static_cast<std::int64_t>(end / 128 * 128);
    const std::vector<std::int64_t> kept =
        last == 128 ? std::vector<std::int64_t>{128} : std::vector<std::int64_t>{128, last};
    EXPECT_EQ(cache.kept_boundaries(std::span(ids).first(end)), kept);
  }
  const PrefixStart other = cache.start(ids);  // begins at 896, which is then worth keeping
  ASSERT_EQ(other.hit_tokens, 896);
  cache.run(start.sequence, token_ids(1100), 8);
  EXPECT_EQ(cache.kept_boundaries(token_ids(1100)), (std::vector<std::int64_t>{128, 896, 1024}));
}

TEST(PrefixStates, ForksKeepTheBoundaryWhereTheyPart) {
  PrefixTestCache cache =
      prefix_cache({.draft_budget = 4,
                    .policy = {.interval_tokens = 0, .prompt_end = false, .output_end = false, .fork_points = true}});
  const std::vector<std::int32_t> ids = token_ids(600);
  const PrefixStart start = cache.start(ids);
  cache.run(start.sequence, std::span(ids).first(259));  // 3 tokens behind the boundary: in the rings
  const ForkResult fork = *cache.manager->fork(start.sequence);
  ASSERT_EQ(cache.manager->boundary_copies().size(), 1U);
  EXPECT_EQ(cache.manager->boundary_copies()[0].boundary, 256);
  EXPECT_EQ(cache.manager->boundary_copies()[0].slot, fork.target.value);
  EXPECT_EQ(cache.kept_boundaries(ids), (std::vector<std::int64_t>{256}));
  cache.run(start.sequence, std::span(ids).first(300));  // too far behind
  ASSERT_TRUE(cache.manager->fork(start.sequence).ok());
  EXPECT_TRUE(cache.manager->boundary_copies().empty());
  // Both go on alone; what they compute enters the cache under their own ids.
  cache.run(start.sequence, ids);
  std::vector<std::int32_t> other(ids.begin(), ids.begin() + 259);
  const std::vector<std::int32_t> more = token_ids(300, 3);
  other.insert(other.end(), more.begin(), more.end());
  cache.run(fork.child, other);
  EXPECT_EQ(cache.manager->prefix_lookup(other, {})->matched_tokens, 512);
  EXPECT_EQ(cache.manager->prefix_lookup(ids, {})->matched_tokens, 512);
}

TEST(PrefixStates, ACopyThatFailedIsNoState) {
  PrefixTestCache cache = prefix_cache();
  const std::vector<std::int32_t> ids = token_ids(300);
  const PrefixStart start = cache.start(ids);
  for (const std::size_t end : {128U, 256U}) {
    ASSERT_TRUE(cache.feed(start.sequence, std::span(ids).subspan(end - 128, 128)).ok());
    ASSERT_EQ(cache.manager->boundary_copies().size(), 1U);
    cache.manager->drop_boundary_copies();
    EXPECT_TRUE(cache.manager->boundary_copies().empty());
    EXPECT_EQ(cache.hit(ids), 0);
    EXPECT_TRUE(cache.manager->check_invariants().ok());
  }
  EXPECT_EQ(cache.manager->prefix_stats().kept_units, 2) << "the rows are good";
}

// Without free states the least useful unit gives its own; pinned ones do not, and refusals are counted.
TEST(PrefixStates, StatesMoveToWhereTheyAreOfUse) {
  PrefixTestCache cache = prefix_cache({.states = 2});
  const std::vector<std::int32_t> first = token_ids(200, 1);
  const std::vector<std::int32_t> second = token_ids(200, 2);
  cache.visit(first);
  cache.visit(second);
  EXPECT_EQ(cache.visit(first), 128);
  cache.visit(token_ids(200, 3));  // takes the state of `second`, which came once
  EXPECT_EQ(cache.hit(first), 128);
  EXPECT_EQ(cache.hit(second), 0);
  EXPECT_EQ(*cache.manager->pin_prefix(first, {}), 128);
  EXPECT_EQ(*cache.manager->pin_prefix(token_ids(200, 3), {}), 128);
  const std::int64_t refused = cache.manager->prefix_stats().states_refused;
  cache.visit(token_ids(200, 4));
  EXPECT_EQ(cache.manager->prefix_stats().states_refused, refused + 1);
  EXPECT_EQ(cache.hit(first), 128);
  EXPECT_EQ(cache.hit(token_ids(200, 3)), 128);
}

// A cache that never hits says why: no states by policy or limit, other salts, prompts below the smallest hit.
TEST(PrefixStates, ZeroHitRateIsNeverSilent) {
  const std::vector<std::int32_t> ids = token_ids(500);
  PrefixTestCache cache = prefix_cache({.policy = kNoStates});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cache.visit(ids), 0);
  PrefixStats stats = cache.manager->prefix_stats();
  EXPECT_EQ(stats.lookups, 3);
  EXPECT_EQ(stats.hit_tokens, 0);
  EXPECT_EQ(stats.missed_tokens, 1500);
  EXPECT_EQ(stats.kept_units, 3);
  EXPECT_EQ(stats.states_taken, 0);
  EXPECT_EQ(cache.manager->prefix_lookup(ids, {})->matched_tokens, 384) << "rows are kept, states are not";

  PrefixTestCache pinned = prefix_cache({.states = 1});
  pinned.visit(token_ids(200, 9));
  ASSERT_EQ(*pinned.manager->pin_prefix(token_ids(200, 9), {}), 128);
  pinned.visit(ids);
  EXPECT_GT(pinned.manager->prefix_stats().states_refused, 0);

  PrefixTestCache small = prefix_cache();
  for (int i = 0; i < 3; ++i) small.visit(token_ids(100));
  EXPECT_EQ(small.manager->prefix_stats().missed_tokens, 300);
  EXPECT_EQ(small.manager->prefix_stats().units_stored, 0);
  EXPECT_EQ(small.manager->prefix_unit_tokens(), 128);

  PrefixTestCache one_salt = prefix_cache({.quota_tokens = 128});
  one_salt.visit(ids);
  EXPECT_GT(one_salt.manager->prefix_stats().sequences_detached, 0) << "longer than its quota";
}

// The tree is full of what live sequences continue from: new salts and units find no place, and that shows. Window
// layers alone have no pools that would run short first.
TEST(PrefixStates, SequencesWithoutAPlaceInTheTreeAreCounted) {
  PrefixTestCache cache =
      prefix_cache({.ratios = {0}, .sequences = 3, .context = 2048, .pool_tokens = 2048, .states = 1});
  const PrefixStart first = cache.start(token_ids(2048, 1));
  cache.run(first.sequence, token_ids(2048, 1));
  const PrefixStart second = cache.start(token_ids(2048, 2));
  cache.run(second.sequence, token_ids(1024, 2));  // 25 places: a root and 16 + 8 units
  EXPECT_EQ(cache.manager->prefix_stats().kept_units, 24);
  EXPECT_EQ(cache.manager->prefix_stats().sequences_detached, 0);
  const PrefixStart third = cache.start(token_ids(500, 3), {.salt = testing_cache::salt("another")});
  EXPECT_EQ(cache.manager->prefix_stats().sequences_detached, 1);
  cache.run(third.sequence, token_ids(500, 3));
  EXPECT_EQ(cache.manager->prefix_stats().kept_units, 24);
  cache.run(second.sequence, token_ids(1200, 2));
  EXPECT_EQ(cache.manager->prefix_stats().sequences_detached, 2);
  ASSERT_TRUE(cache.manager->release(first.sequence).ok());
  ASSERT_TRUE(cache.manager->release(third.sequence).ok());
  cache.visit(token_ids(500, 3), {.salt = testing_cache::salt("another")});
  EXPECT_EQ(cache.manager->prefix_lookup(token_ids(500, 3), testing_cache::salt("another"))->matched_tokens, 384)
      << "there is room again";
  EXPECT_TRUE(cache.manager->check_invariants().ok());
}

// With fewer states than boundaries in a step, the deepest are worth most: whoever comes again begins there.
TEST(PrefixStates, ALongStepSpendsScarceStatesOnItsLastBoundaries) {
  const std::vector<std::int32_t> ids = token_ids(1500);
  PrefixTestCache cache = prefix_cache({.states = 3});
  cache.visit(ids);
  const PrefixStart start = cache.start(ids);
  EXPECT_EQ(start.hit_tokens, 1408);
  PrefixTestCache whole = prefix_cache({.states = 3});
  const PrefixStart first = whole.start(ids);
  ASSERT_TRUE(whole.feed(first.sequence, ids).ok());
  ASSERT_EQ(whole.captured.size(), 3U);
  EXPECT_EQ(whole.captured[0].boundary, 1152);
  EXPECT_EQ(whole.captured[2].boundary, 1408);
  EXPECT_EQ(whole.kept_boundaries(ids), (std::vector<std::int64_t>{1152, 1280, 1408}));
}

}  // namespace
}  // namespace dsv4rt
