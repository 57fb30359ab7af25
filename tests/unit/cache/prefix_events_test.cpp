// What the cache tells: events in order, with digests, parents and tokens, and counts that add up.
#include "cache/prefix_identity.h"
#include "prefix_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::prefix_cache;
using testing_cache::PrefixTestCache;
using testing_cache::salt;
using testing_cache::token_ids;

using Kind = PrefixEvent::Kind;

TEST(PrefixEvents, UnitsAndStatesComeAndGoWithTheirNames) {
  PrefixTestCache cache = prefix_cache();
  const std::vector<std::int32_t> ids = token_ids(300);
  const PrefixStart start = cache.start(ids, {.salt = salt("t")});
  EXPECT_TRUE(cache.manager->prefix_events().empty()) << "a salt is no unit";
  cache.run(start.sequence, ids);
  PrefixHasher hasher(cache.settings.engine);
  std::vector<PrefixDigest> digests{hasher.root(salt("t"))};
  for (const std::size_t unit : {0U, 1U}) {
    digests.push_back(hasher.unit(digests.back(), std::span(ids).subspan(unit * 128, 128)));
  }
  const auto events = cache.manager->prefix_events();
  ASSERT_EQ(events.size(), 4U);
  for (const std::size_t unit : {0U, 1U}) {
    const PrefixEventRecord& stored = events[2 * unit];
    EXPECT_EQ(stored.kind, Kind::kUnitStored);
    EXPECT_EQ(events[2 * unit + 1].kind, Kind::kStateStored);
    for (const PrefixEventRecord* event : {&stored, &events[2 * unit + 1]}) {
      EXPECT_EQ(event->digest, digests[unit + 1]);
      EXPECT_EQ(event->parent, digests[unit]);
      EXPECT_EQ(event->end_tokens, 128 * static_cast<std::int64_t>(unit + 1));
      EXPECT_TRUE(std::ranges::equal(cache.manager->event_token_ids(*event), std::span(ids).subspan(unit * 128, 128)));
    }
  }
  cache.manager->clear_prefix_events();
  EXPECT_TRUE(cache.manager->prefix_events().empty());

  ASSERT_EQ(*cache.manager->evict_prefix(ids, salt("t")), 256);
  const auto removed = cache.manager->prefix_events();
  ASSERT_EQ(removed.size(), 4U);
  for (const std::size_t i : {0U, 1U}) {  // the deeper one first, its state before it
    EXPECT_EQ(removed[2 * i].kind, Kind::kStateRemoved);
    EXPECT_EQ(removed[2 * i + 1].kind, Kind::kUnitRemoved);
    EXPECT_EQ(removed[2 * i + 1].digest, digests[2 - i]);
    EXPECT_EQ(removed[2 * i + 1].parent, digests[1 - i]);
    EXPECT_EQ(removed[2 * i + 1].removal, PrefixRemoval::kRequest);
    EXPECT_TRUE(cache.manager->event_token_ids(removed[2 * i + 1]).empty()) << "they left with their unit";
  }
}

TEST(PrefixEvents, RemovalsSayWhy) {
  PrefixTestCache cache = prefix_cache({.quota_tokens = 256});
  cache.visit(token_ids(300, 1));
  cache.manager->clear_prefix_events();
  cache.visit(token_ids(300, 2));
  std::int64_t by_quota = 0;
  for (const PrefixEventRecord& event : cache.manager->prefix_events()) {
    by_quota += event.kind == Kind::kUnitRemoved && event.removal == PrefixRemoval::kQuota ? 1 : 0;
  }
  EXPECT_EQ(by_quota, 2);
  EXPECT_EQ(cache.manager->prefix_stats().units_removed_by_quota, 2);

  PrefixTestCache tight = prefix_cache({.context = 512, .pool_tokens = 512});
  tight.plan.pool_blocks = {1 + 8, 1 + 8, 1 + 1};
  tight.rebuild();
  tight.visit(token_ids(512, 1));
  tight.manager->clear_prefix_events();
  const PrefixStart start = tight.start(token_ids(512, 2));
  ASSERT_TRUE(tight.feed(start.sequence, token_ids(512, 2)).ok());
  std::int64_t for_space = 0;
  for (const PrefixEventRecord& event : tight.manager->prefix_events()) {
    for_space += event.kind == Kind::kUnitRemoved && event.removal == PrefixRemoval::kSpace ? 1 : 0;
  }
  EXPECT_EQ(for_space, 4);
  EXPECT_EQ(tight.manager->prefix_stats().units_removed_for_space, 4);
}

TEST(PrefixEvents, NothingIsRecordedUnasked) {
  PrefixTestCache cache = prefix_cache();
  cache.settings.record_events = false;
  cache.rebuild();
  cache.visit(token_ids(300));
  EXPECT_TRUE(cache.manager->prefix_events().empty());
}

TEST(PrefixEvents, CountsAddUp) {
  PrefixTestCache cache = prefix_cache();
  const std::vector<std::int32_t> ids = token_ids(400);
  cache.visit(ids);
  cache.visit(ids);
  PrefixStats stats = cache.manager->prefix_stats();
  EXPECT_EQ(stats.lookups, 2);
  EXPECT_EQ(stats.hit_tokens, 384);
  EXPECT_EQ(stats.missed_tokens, 400 + 16);
  EXPECT_EQ(stats.units_stored, 3);
  EXPECT_EQ(stats.kept_units, 3);
  EXPECT_EQ(stats.states_taken, 3);
  EXPECT_EQ(stats.kept_states, 3);
  ASSERT_TRUE(cache.manager->clear_prefixes().ok());
  stats = cache.manager->prefix_stats();
  EXPECT_EQ(stats.units_removed_on_request, 3);
  EXPECT_EQ(stats.states_removed, 3);
  EXPECT_EQ(stats.kept_units + stats.kept_states, 0);
  EXPECT_EQ(cache.visit(ids), 0);
}

// Lookups change nothing, neither do refused calls.
TEST(PrefixEvents, FailingCallsChangeNothing) {
  PrefixTestCache cache = prefix_cache({.sequences = 1});
  const std::vector<std::int32_t> ids = token_ids(400);
  const PrefixStart start = cache.start(ids);
  cache.run(start.sequence, ids);
  cache.manager->clear_prefix_events();
  const auto before = cache.counts();
  const auto blocks = cache.snapshot({start.sequence});
  EXPECT_EQ(cache.manager->create_sequence(ids, {}).status().code(), StatusCode::kResourceExhausted);  // no slot
  EXPECT_EQ(cache.manager->branch(start.sequence, 128).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache.manager->branch(start.sequence, 100).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache.manager->truncate_to_boundary(start.sequence, 100).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache.hit(ids), 384);
  EXPECT_EQ(*cache.manager->pin_prefix(ids, salt("other")), 0);
  EXPECT_EQ(*cache.manager->unpin_prefix(ids, {}), 0);
  EXPECT_EQ(*cache.manager->evict_prefix(ids, salt("other")), 0);
  EXPECT_EQ(cache.counts(), before);
  EXPECT_EQ(cache.snapshot({start.sequence}), blocks);
  EXPECT_TRUE(cache.manager->prefix_events().empty());
}

}  // namespace
}  // namespace dsv4rt
