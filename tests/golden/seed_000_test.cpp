// Seed 000: the functional compressor over tails. Its blocks pool 2m rows (CSA) or m' rows (HCA); incomplete
// tails give no entry. Corrected: the previous block enters through its own b-projection.
#include <gtest/gtest.h>

#include "seed_compressor.h"

namespace dsv4rt::test {
namespace {

std::vector<double> entries(SeedCompressor& seed, const SeedStream& stream, SeedEquation equation) {
  std::vector<double> all;
  for (std::int64_t block = 0; block < 20; ++block) {
    std::vector<double> entry = seed_entry(stream, seed.hidden(), block, equation);
    if (stream.rotated) seed_rotate(entry, block * stream.ratio() + stream.ratio() - 1);
    all.insert(all.end(), entry.begin(), entry.end());
  }
  return all;
}

TEST(Seed000, TailsAreCompressedThroughTheRightProjections) {
  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  while (seed.length() < 80) seed.append(seed.length() % 3 + 1 <= 80 - seed.length() ? seed.length() % 3 + 1 : 1);
  for (const SeedStream* stream : {&seed.csa(), &seed.index()}) {
    const std::vector<float> ours = seed.rows(*stream);
    EXPECT_LE(relative_distance(ours, entries(seed, *stream, SeedEquation::kPaper)), 2e-3);
    // The mistakes this test exists for are far away, not within any tolerance.
    EXPECT_GE(relative_distance(ours, entries(seed, *stream, SeedEquation::kPreviousThroughA)), 0.3);
    EXPECT_GE(relative_distance(ours, entries(seed, *stream, SeedEquation::kSwapped)), 0.3);
  }
}

TEST(Seed000, IncompleteTailsGiveNoEntry) {
  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  std::vector<std::vector<std::byte>> before;
  for (const SeedStream& stream : seed.streams()) {
    seed.rig().fill_pool(seed.pool(stream), std::byte{0x5a});
    before.push_back(seed.rig().pool_bytes(seed.pool(stream)));
  }
  const auto changed = [&](std::size_t i) { return seed.rig().pool_bytes(seed.pool(seed.streams()[i])) != before[i]; };
  for (int token = 0; token < 3; ++token) {
    seed.append(1);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(changed(i)) << "stream " << i << " after " << token + 1;
  }
  seed.append(1);
  EXPECT_TRUE(changed(0));
  EXPECT_TRUE(changed(1));
  seed.append(123);
  EXPECT_FALSE(changed(2)) << "127 tokens are no block of 128";
  seed.append(1);
  EXPECT_TRUE(changed(2));
}

TEST(Seed000, FirstBlockHasNoPreviousOne) {
  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  seed.append(4);
  // Softmax over the four current rows alone: the same whatever the b-projection is.
  EXPECT_LE(relative_distance(seed.rows(seed.index()), seed_entry(seed.index(), seed.hidden(), 0)), 2e-3);
}

TEST(Seed000, HcaPoolsItsBlockWithoutOverlap) {
  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  seed.append_all(77);
  const SeedStream& hca = seed.hca();
  std::vector<double> expected;
  for (std::int64_t block = 0; block < 2; ++block) {
    auto entry = seed_entry(hca, seed.hidden(), block);
    seed_rotate(entry, block * 128 + 127);
    expected.insert(expected.end(), entry.begin(), entry.end());
  }
  EXPECT_LE(relative_distance(seed.rows(hca), expected), 2e-3);
}

}  // namespace
}  // namespace dsv4rt::test
