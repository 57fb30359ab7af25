// Seed 004: packed projections and a fused pool give what separate projections and the plain equation do.
#include <gtest/gtest.h>

#include "seed_compressor.h"

namespace dsv4rt::test {
namespace {

TEST(Seed004, PackedProjectionsAreTheSeparateOnesSideBySide) {
  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  for (const SeedStream* stream : {&seed.csa(), &seed.index()}) {
    const auto dim = static_cast<std::size_t>(stream->dim());
    const auto tokens = static_cast<std::size_t>(37);
    const std::vector<float> packed = seed.project(*stream->wkv, 11, 37).download();
    const std::vector<float> previous = seed.project(*seed.pack({&stream->previous.kv}), 11, 37).download();
    const std::vector<float> current = seed.project(*seed.pack({&stream->current.kv}), 11, 37).download();
    for (std::size_t t = 0; t < tokens; ++t) {
      EXPECT_TRUE(std::equal(previous.begin() + static_cast<std::ptrdiff_t>(t * dim),
                             previous.begin() + static_cast<std::ptrdiff_t>((t + 1) * dim),
                             packed.begin() + static_cast<std::ptrdiff_t>(t * 2 * dim)));
      EXPECT_TRUE(std::equal(current.begin() + static_cast<std::ptrdiff_t>(t * dim),
                             current.begin() + static_cast<std::ptrdiff_t>((t + 1) * dim),
                             packed.begin() + static_cast<std::ptrdiff_t>((t * 2 + 1) * dim)));
    }
  }
}

// Every unrotated value is the double-precision one, rounded to BF16 once: half a unit in the last place
// plus the FP32 arithmetic.
TEST(Seed004, FusedPoolEqualsTheEquationInDoublePrecision) {
  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  seed.append_all(13);
  for (const SeedStream& stream : seed.streams()) {
    SCOPED_TRACE(cache_role_name(stream.role));
    const std::vector<float> ours = seed.rows(stream);
    const std::int64_t unrotated = stream.rotated ? kNopeDim : kIndexHeadDim;
    for (std::int64_t block = 0; block < std::min<std::int64_t>(stream.expected.rows, 30); ++block) {
      const std::vector<double> entry = seed_entry(stream, seed.hidden(), block);
      for (std::int64_t i = 0; i < unrotated; ++i) {
        const double value = entry[static_cast<std::size_t>(i)];
        EXPECT_NEAR(ours[static_cast<std::size_t>(block * stream.dim() + i)], value, std::fabs(value) / 256 + 1e-5);
      }
    }
  }
}

// Entry 0 pools the current rows alone; rows that a ring holds by accident do not enter.
TEST(Seed004, EntryZeroHasNoPreviousBlock) {
  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  for (const SeedStream& stream : seed.streams()) {
    seed.rig().fill_ring(seed.state_slot(stream), seed.sequence(), std::byte{0xff});  // NaN
  }
  for (int token = 0; token < 4; ++token) seed.append(1);
  for (const SeedStream* stream : {&seed.csa(), &seed.index()}) {
    const std::vector<float> ours = seed.rows(*stream);
    const std::vector<double> entry = seed_entry(*stream, seed.hidden(), 0);
    const std::int64_t unrotated = stream->rotated ? kNopeDim : kIndexHeadDim;
    for (std::size_t i = 0; i < static_cast<std::size_t>(unrotated); ++i) {
      EXPECT_NEAR(ours[i], entry[i], std::fabs(entry[i]) / 256 + 1e-5);
    }
  }
}

}  // namespace
}  // namespace dsv4rt::test
