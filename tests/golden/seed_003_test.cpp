// Seed 003: state schema, exact block counts before a step, what a flush writes and what it leaves behind.
#include <limits>

#include <gtest/gtest.h>

#include "seed_compressor.h"

namespace dsv4rt::test {
namespace {

TEST(Seed003, RingsHoldTheCurrentAndThePreviousBlock) {
  SeedCompressor seed(RowFormat::kFp8Row, IndexKeyFormat::kNvfp4);
  const auto ring = [&](const SeedStream& stream) {
    return seed.rig().layout().slots()[static_cast<std::size_t>(seed.state_slot(stream))];
  };
  // CSA: 4 current + 4 previous rows; HCA: 128 and none.
  EXPECT_EQ(ring(seed.csa()).ring_rows, 4 + 4);
  EXPECT_EQ(ring(seed.index()).ring_rows, 4 + 4);
  EXPECT_EQ(ring(seed.hca()).ring_rows, 128 + 0);
  EXPECT_TRUE(ring(seed.csa()).overlap);
  EXPECT_FALSE(ring(seed.hca()).overlap);
}

TEST(Seed003, PrepareForwardCountsNewEntriesAndBlocksExactly) {
  for (const std::int64_t first : {1, 3, 4, 60, 63, 64, 65, 127, 128, 255}) {
    for (const std::int64_t more : {1, 2, 3, 4, 5, 64, 128, 130, 200}) {
      SeedCompressor seed(RowFormat::kFp8Row, IndexKeyFormat::kNvfp4);
      auto& rig = seed.rig();
      const SequenceId sequence = seed.sequence();
      for (const std::int64_t tokens : {first, more}) {
        const std::int64_t before = rig.manager().length(sequence).value();
        const StepEntry entry{sequence, static_cast<std::int32_t>(tokens)};
        rig.begin({&entry, 1});
        const StepView& step = rig.host_step();
        const std::int64_t after = before + tokens;
        for (const std::int32_t ratio : rig.schedule().ratios()) {
          const int c = rig.schedule().ratio_class(ratio);
          const auto entries = std::count(step.valid_mask[c], step.valid_mask[c] + tokens, std::uint8_t{1});
          EXPECT_EQ(entries, after / ratio - before / ratio);
        }
        for (int pool = 0; pool < static_cast<int>(rig.layout().pools().size()); ++pool) {
          const PoolSpec& spec = rig.layout().pools()[static_cast<std::size_t>(pool)];
          const std::int64_t entries = after / spec.ratio;
          const std::int64_t blocks = (entries + spec.shape.rows - 1) / spec.shape.rows;
          EXPECT_EQ(static_cast<std::int64_t>(rig.manager().blocks(sequence, pool)->size()), blocks);
          EXPECT_EQ(rig.manager().usage(pool).live, blocks);
        }
        rig.commit();
      }
    }
  }
}

TEST(Seed003, Nvfp4KeysAreWrittenWithinTheirBound) {
  SeedCompressor exact(RowFormat::kBf16, IndexKeyFormat::kBf16);
  exact.append_all(50);
  SeedCompressor seed(RowFormat::kFp8Row, IndexKeyFormat::kNvfp4);
  seed.append_all(50);
  const std::vector<float> keys = seed.rows(seed.index());
  const std::vector<float> reference = exact.rows(exact.index());
  ASSERT_EQ(keys.size(), 75U * kIndexHeadDim);
  for (std::size_t group = 0; group < keys.size(); group += 16) {
    float amax = 0;
    float largest = 0;
    for (std::size_t i = group; i < group + 16; ++i) {
      amax = std::max(amax, std::fabs(reference[i]));
      largest = std::max(largest, std::fabs(keys[i]));
    }
    EXPECT_GT(largest, 0.0F) << "group " << group / 16 << " was not written";
    // scale = E4M3(amax / 6), at most 1/16 from amax / 6; the grid's widest step is 2.
    for (std::size_t i = group; i < group + 16; ++i) {
      EXPECT_LE(std::fabs(keys[i] - reference[i]), amax / 6 * (1 + 1.0F / 16));
    }
  }
  EXPECT_LE(relative_distance(keys, reference), 0.15);
}

// Poisoned pools: a masked flush writes nothing anywhere, an unmasked one exactly its rows' bytes.
TEST(Seed003, AnInvalidMaskChangesNoByte) {
  for (const bool masked : {true, false}) {
    SeedCompressor seed(RowFormat::kFp8Row, IndexKeyFormat::kNvfp4);
    seed.append(3);
    for (const SeedStream& stream : seed.streams()) seed.rig().fill_pool(seed.pool(stream), std::byte{0xc3});
    seed.append(1, masked);  // completes block 0 of the ratio-4 pools
    for (const SeedStream& stream : seed.streams()) {
      const int pool = seed.pool(stream);
      const PoolSpec& spec = seed.rig().layout().pools()[static_cast<std::size_t>(pool)];
      auto bytes = seed.rig().pool_bytes(pool);
      const bool flushes = !masked && stream.ratio() == 4;
      EXPECT_EQ(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0xc3}; }), !flushes);
      if (!flushes) continue;
      // Erase the canary's expected exception: row 0 of the sequence's first block.
      const BlockId block = seed.rig().manager().blocks(seed.sequence(), pool)->front();
      EXPECT_NE(block.value, 0);
      const auto base = static_cast<std::size_t>(block.value * spec.shape.block_bytes);
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(base), spec.shape.data_bytes, std::byte{0xc3});
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(base) + spec.shape.scale_offset(0),
                  spec.shape.scale_bytes, std::byte{0xc3});
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0xc3}; }))
          << "bytes outside the row changed";
    }
  }
}

// After a flush the block that was current is the previous one and the tail is empty. Nothing moves: the
// ring keeps both projections of every row, and the next entry reads the old block through b.
TEST(Seed003, AfterAFlushTheCurrentBlockIsThePreviousOneAndTheTailIsEmpty) {
  SeedCompressor plain(RowFormat::kBf16, IndexKeyFormat::kBf16);
  plain.append_all(300);
  const std::vector<float> expected = plain.rows(plain.csa());

  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  seed.append(8);
  const int slot = seed.state_slot(seed.csa());
  const SlotSpec& spec = seed.rig().layout().slots()[static_cast<std::size_t>(slot)];
  // Positions 4..7 are still needed, as the previous block; none belongs to a tail.
  EXPECT_EQ(first_needed_position(spec, 8), 4);
  EXPECT_EQ(8 % spec.ratio, 0);
  std::vector<std::byte> ring = seed.rig().ring_bytes(slot, seed.sequence());
  auto* values = reinterpret_cast<float*>(ring.data());
  const std::int64_t width = spec.state_width;
  const auto row_of = [&](std::int64_t position) { return values + position % spec.ring_rows * 2 * width; };
  for (std::int64_t position = 4; position < 8; ++position) {
    // kv then score + bias, each [previous | current].
    for (std::int64_t column = 0; column < width; ++column) {
      const auto& projection = column < kHeadDim ? seed.csa().previous : seed.csa().current;
      double kv = 0;
      double gate = projection.bias.at(position % 4, column % kHeadDim);
      for (std::int64_t i = 0; i < SeedCompressor::kHidden; ++i) {
        kv += seed.hidden().at(position, i) * projection.kv.at(i, column % kHeadDim);
        gate += seed.hidden().at(position, i) * projection.gate.at(i, column % kHeadDim);
      }
      EXPECT_NEAR(row_of(position)[column], kv, 1e-4);
      EXPECT_NEAR(row_of(position)[width + column], gate, 1e-4);
    }
  }
  // What the next entry may not read: older rows, and the previous block's current columns.
  for (std::int64_t position = 0; position < 8; ++position) {
    for (float* part : {row_of(position), row_of(position) + width}) {
      std::fill_n(part + (position < 4 ? 0 : kHeadDim), position < 4 ? width : kHeadDim,
                  std::numeric_limits<float>::quiet_NaN());
    }
  }
  seed.rig().write_ring(slot, seed.sequence(), ring);
  seed.append(4);
  const auto entry = seed.rig().row_values(seed.pool(seed.csa()), seed.sequence(), 2);
  EXPECT_TRUE(std::equal(entry.begin(), entry.end(), expected.begin() + 2 * kHeadDim));
}

TEST(Seed003, TheNextEntryReadsThePreviousBlocksOwnProjection) {
  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  seed.append(8);
  const int slot = seed.state_slot(seed.csa());
  const SlotSpec& spec = seed.rig().layout().slots()[static_cast<std::size_t>(slot)];
  std::vector<std::byte> ring = seed.rig().ring_bytes(slot, seed.sequence());
  auto* values = reinterpret_cast<float*>(ring.data());
  values[7 % spec.ring_rows * 2 * spec.state_width] = std::numeric_limits<float>::quiet_NaN();  // kv, previous, 0
  seed.rig().write_ring(slot, seed.sequence(), ring);
  seed.append(4);
  const auto entry = seed.rig().row_values(seed.pool(seed.csa()), seed.sequence(), 2);
  EXPECT_TRUE(std::isnan(entry[0]));
  EXPECT_FALSE(std::isnan(entry[1]));
}

TEST(Seed003, HcaTailIsEmptyAfterAFlush) {
  SeedCompressor plain(RowFormat::kBf16, IndexKeyFormat::kBf16);
  plain.append_all(300);
  SeedCompressor seed(RowFormat::kBf16, IndexKeyFormat::kBf16);
  seed.append(128);
  const int slot = seed.state_slot(seed.hca());
  EXPECT_EQ(first_needed_position(seed.rig().layout().slots()[static_cast<std::size_t>(slot)], 128), 128);
  seed.rig().fill_ring(slot, seed.sequence(), std::byte{0xff});  // NaN everywhere: no row of it may be read again
  seed.append_all(50);
  EXPECT_EQ(seed.rows(seed.hca()), plain.rows(plain.hca()));
}

}  // namespace
}  // namespace dsv4rt::test
