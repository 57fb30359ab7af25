// What tells prefixes apart: nothing but the same bytes in the same frames has the same digest.
#include "cache/prefix_identity.h"

#include <set>

#include "prefix_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::prefix_cache;
using testing_cache::PrefixTestCache;
using testing_cache::salt;
using testing_cache::token_ids;

std::array<std::byte, 8> number(std::uint64_t value) {
  std::array<std::byte, 8> bytes;
  for (int i = 0; i < 8; ++i) bytes[static_cast<std::size_t>(i)] = static_cast<std::byte>(value >> (8 * i));
  return bytes;
}

TEST(PrefixIdentity, EqualPartsHaveEqualDigests) {
  const PrefixDigest engine = PrefixHasher::engine_digest(salt("checkpoint"), salt("layout"));
  PrefixHasher a(engine);
  PrefixHasher b(engine);
  EXPECT_EQ(a.root(salt("tenant")), b.root(salt("tenant")));
  EXPECT_EQ(a.unit(a.root({}), token_ids(128)), b.unit(b.root({}), token_ids(128)));
}

// Parts that are only cut elsewhere feed other bytes.
TEST(PrefixIdentity, PartsAreFramedByTheirLengths) {
  std::set<PrefixDigest> engines;
  for (const auto& [checkpoint, layout] : {std::pair{"ab", "c"}, {"a", "bc"}, {"abc", ""}, {"", "abc"}}) {
    EXPECT_TRUE(engines.insert(PrefixHasher::engine_digest(salt(checkpoint), salt(layout))).second);
  }
  PrefixHasher hasher(*engines.begin());
  const std::vector<std::int32_t> ids = token_ids(256);
  const std::span<const std::int32_t> all(ids);
  const PrefixDigest root = hasher.root({});
  std::set<PrefixDigest> ends;
  for (const std::size_t cut : {0U, 1U, 64U, 127U, 128U, 129U, 255U, 256U}) {
    EXPECT_TRUE(ends.insert(hasher.unit(hasher.unit(root, all.first(cut)), all.subspan(cut))).second) << cut;
  }
  EXPECT_TRUE(ends.insert(hasher.unit(root, ids)).second);
}

TEST(PrefixIdentity, KindsOfDigestsAreTagged) {
  const PrefixDigest engine = PrefixHasher::engine_digest({}, {});
  PrefixHasher hasher(engine);
  EXPECT_NE(hasher.root({}), engine);
  EXPECT_NE(hasher.root({}), hasher.unit(engine, {}));
  const std::vector<std::int32_t> ids = token_ids(1);
  EXPECT_NE(hasher.root(std::as_bytes(std::span(ids))), hasher.unit(engine, ids));
}

// 10^5 tries, a quarter of each kind. Nobody meets what is kept under other names.
TEST(PrefixIdentity, AHundredThousandOtherNamesNeverHit) {
  PrefixTestCache cache = prefix_cache();
  cache.settings.engine = PrefixHasher::engine_digest(number(1), number(2));
  cache.rebuild();
  const std::vector<std::int32_t> ids = token_ids(300);
  cache.visit(ids, {.salt = salt("tenant")});
  ASSERT_EQ(cache.hit(ids, salt("tenant")), 256);
  std::int64_t hits = 0;
  for (std::uint64_t i = 0; i < 25'000; ++i) hits += cache.hit(ids, number(i));
  // Tokens that begin one later, or whose bytes are cut otherwise.
  for (std::uint64_t i = 0; i < 25'000; ++i) {
    std::vector<std::int32_t> other = ids;
    const auto at = static_cast<std::ptrdiff_t>(i % 128);
    if (i % 2 == 0) other.insert(other.begin() + at, static_cast<std::int32_t>(200'000 + i));
    if (i % 2 == 1) other[static_cast<std::size_t>(at)] ^= 1 << (i / 128 % 20);
    hits += cache.hit(other, salt("tenant"));
  }
  EXPECT_EQ(hits, 0);
  // Another checkpoint or layout makes another root, hence other digests altogether.
  PrefixHasher mine(cache.settings.engine);
  const PrefixDigest root = mine.root(salt("tenant"));
  const PrefixDigest unit = mine.unit(root, std::span(ids).first(128));
  std::int64_t equal = 0;
  for (std::uint64_t i = 0; i < 50'000; ++i) {
    const bool checkpoint = i % 2 == 0;
    PrefixHasher other(PrefixHasher::engine_digest(number(checkpoint ? i + 3 : 1), number(checkpoint ? 2 : i + 3)));
    const PrefixDigest other_root = other.root(salt("tenant"));
    equal += other_root == root || other.unit(other_root, std::span(ids).first(128)) == unit ? 1 : 0;
  }
  EXPECT_EQ(equal, 0);
}

TEST(PrefixIdentity, EqualIdsUnderAnotherSaltNeverShareABlock) {
  PrefixTestCache cache = prefix_cache();
  const std::vector<std::int32_t> ids = token_ids(1000);
  const PrefixStart a = cache.start(ids, {.salt = salt("a")});
  cache.run(a.sequence, ids);
  const PrefixStart b = cache.start(ids, {.salt = salt("b")});
  EXPECT_EQ(b.hit_tokens, 0);
  cache.run(b.sequence, ids);
  const PrefixStart again = cache.start(ids, {.salt = salt("a")});
  EXPECT_EQ(again.hit_tokens, 896);
  for (int pool = 0; pool < 3; ++pool) {
    const std::vector<std::int32_t> of_a = cache.blocks(a.sequence, pool);
    const std::vector<std::int32_t> of_again = cache.blocks(again.sequence, pool);
    const std::set<std::int32_t> first(of_a.begin(), of_a.end());
    for (const std::int32_t block : cache.blocks(b.sequence, pool)) EXPECT_EQ(first.count(block), 0U);
    for (const std::int32_t block : of_again) EXPECT_EQ(first.count(block), 1U);
  }
}

}  // namespace
}  // namespace dsv4rt
