// Seed 001: CSA, indexer and HCA compressors, incrementally equal to at once; RoPE at the last token of a
// block, none on index keys, no norm.
#include <gtest/gtest.h>

#include "seed_compressor.h"

namespace dsv4rt::test {
namespace {

void expect_golden(SeedCompressor& seed) {
  for (const SeedStream& stream : seed.streams()) {
    SCOPED_TRACE(cache_role_name(stream.role));
    const std::vector<float> ours = seed.rows(stream);
    ASSERT_EQ(static_cast<std::int64_t>(ours.size()), stream.expected.rows * stream.expected.columns);
    EXPECT_LE(relative_distance(ours, stream.expected.values), 2e-3);
  }
}

class Seed001 : public testing::TestWithParam<std::int64_t> {};

TEST_P(Seed001, GoldenEntriesForEveryChunking) {
  SeedCompressor whole(RowFormat::kBf16, IndexKeyFormat::kBf16);
  whole.append_all(SeedCompressor::kTokens);
  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  seed.append_all(GetParam());
  expect_golden(seed);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(seed.rows(seed.streams()[i]), whole.rows(whole.streams()[i]));
}

INSTANTIATE_TEST_SUITE_P(ChunkTokens, Seed001, testing::Values(1, 2, 3, 4, 5, 7, 127, 128, 129, 300),
                         testing::PrintToStringParamName());

// The seed's chunked prefill forgot the tail in a block's absolute position, which moves its rotation:
// chunks that do not end at a block show it.
TEST(Seed001Mixed, PrefillDecodeAndOddChunksInOneSequence) {
  SeedCompressor whole(RowFormat::kBf16, IndexKeyFormat::kBf16);
  whole.append_all(SeedCompressor::kTokens);
  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  for (const std::int64_t tokens : {20, 6, 1, 1, 3, 96, 1, 2, 130, 5, 35}) seed.append(tokens);
  ASSERT_EQ(seed.length(), SeedCompressor::kTokens);
  expect_golden(seed);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(seed.rows(seed.streams()[i]), whole.rows(whole.streams()[i]));
}

TEST(Seed001Mixed, TheRotationIsThatOfTheLastTokenAndKeysHaveNone) {
  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  seed.append_all(300);
  const auto with_anchor = [&](const SeedStream& stream, std::int64_t offset) {
    std::vector<double> all;
    for (std::int64_t block = 0; block < seed.length() / stream.ratio() && block < 40; ++block) {
      auto entry = seed_entry(stream, seed.hidden(), block);
      if (offset >= 0) seed_rotate(entry, block * stream.ratio() + offset);
      all.insert(all.end(), entry.begin(), entry.end());
    }
    return all;
  };
  const auto ours = [&](const SeedStream& stream) {
    auto rows = seed.rows(stream);
    rows.resize(std::min<std::size_t>(rows.size(), static_cast<std::size_t>(40 * stream.dim())));
    return rows;
  };
  EXPECT_LE(relative_distance(ours(seed.csa()), with_anchor(seed.csa(), 3)), 2e-3);
  EXPECT_GE(relative_distance(ours(seed.csa()), with_anchor(seed.csa(), 0)), 0.1);
  EXPECT_LE(relative_distance(ours(seed.hca()), with_anchor(seed.hca(), 127)), 2e-3);
  EXPECT_GE(relative_distance(ours(seed.hca()), with_anchor(seed.hca(), 0)), 0.1);
  EXPECT_LE(relative_distance(ours(seed.index()), with_anchor(seed.index(), -1)), 2e-3);
  EXPECT_GE(relative_distance(ours(seed.index()), with_anchor(seed.index(), 3)), 0.1);
}

}  // namespace
}  // namespace dsv4rt::test
