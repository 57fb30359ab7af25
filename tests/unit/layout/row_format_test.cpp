#include "layout/row_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/bfloat16.h"
#include "base/check.h"
#include "dsv4rt/model.h"
#include "unit/layout/float_samples.h"

namespace dsv4rt {
namespace {

constexpr RowFormat kRowFormats[] = {RowFormat::kFp8DsMla, RowFormat::kFp8Row, RowFormat::kNvfp4, RowFormat::kBf16};
constexpr IndexKeyFormat kIndexKeyFormats[] = {IndexKeyFormat::kMxfp4, IndexKeyFormat::kNvfp4, IndexKeyFormat::kFp8,
                                               IndexKeyFormat::kBf16};

constexpr int value_count(RowFormat) { return kHeadDim; }
constexpr int value_count(IndexKeyFormat) { return kIndexHeadDim; }

// E2M1 cannot say NaN.
constexpr bool has_four_bit_codes(RowFormat format) { return format == RowFormat::kNvfp4; }
constexpr bool has_four_bit_codes(IndexKeyFormat format) {
  return format == IndexKeyFormat::kMxfp4 || format == IndexKeyFormat::kNvfp4;
}

// Calls visit(format) for all eight formats of both enumerations.
template <class Visitor>
void for_each_format(Visitor&& visit) {
  for (const RowFormat format : kRowFormats) {
    SCOPED_TRACE(std::string("row format ") + std::string(row_format_name(format)));
    visit(format);
  }
  for (const IndexKeyFormat format : kIndexKeyFormats) {
    SCOPED_TRACE(std::string("index key format ") + std::string(index_key_format_name(format)));
    visit(format);
  }
}

std::vector<float> random_values(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(round_to_bf16(normal(random)));
  return values;
}

TEST(RowFormat, BlockShapes) {
  const auto expect = [](const BlockShape& shape, int data, int scale, std::int64_t block) {
    EXPECT_EQ(shape.data_bytes, data);
    EXPECT_EQ(shape.scale_bytes, scale);
    EXPECT_EQ(shape.row_bytes(), data + scale);
    EXPECT_EQ(shape.block_bytes, block);
  };
  expect(block_shape(RowFormat::kFp8DsMla, 64), 576, 8, 37440);  // 37376 padded to 65 * 576
  expect(block_shape(RowFormat::kFp8DsMla, 2), 576, 8, 1728);    // 1168 padded to 3 * 576
  expect(block_shape(RowFormat::kFp8DsMla, 72), 576, 8, 73 * 576);  // already a multiple
  expect(block_shape(RowFormat::kFp8Row, 64), 576, 4, 37120);
  expect(block_shape(RowFormat::kFp8Row, 2), 576, 4, 1168);      // 1160 padded to a multiple of 16
  expect(block_shape(RowFormat::kNvfp4, 2), 352, 32, 768);
  expect(block_shape(RowFormat::kBf16, 3), 1024, 0, 3072);
  expect(block_shape(IndexKeyFormat::kMxfp4, 64), 64, 4, 4352);
  expect(block_shape(IndexKeyFormat::kMxfp4, 1), 64, 4, 80);
  expect(block_shape(IndexKeyFormat::kNvfp4, 64), 64, 8, 4608);
  expect(block_shape(IndexKeyFormat::kFp8, 64), 128, 4, 8448);
  expect(block_shape(IndexKeyFormat::kBf16, 64), 256, 0, 16384);
}

TEST(RowFormat, BlockBytesBeyondTwoGibibytesDoNotOverflow) {
  const BlockShape shape = block_shape(RowFormat::kBf16, std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(shape.block_bytes, 1024 * std::int64_t{std::numeric_limits<std::int32_t>::max()});
  EXPECT_EQ(shape.data_offset(shape.rows - 1), 1024 * (std::int64_t{shape.rows} - 1));
}

// Lesson 14: an unknown layout fails closed.
TEST(RowFormat, NamesRoundTrip) {
  for (const RowFormat format : kRowFormats) {
    const auto parsed = row_format_from_name(row_format_name(format));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, format);
  }
  for (const IndexKeyFormat format : kIndexKeyFormats) {
    const auto parsed = index_key_format_from_name(index_key_format_name(format));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, format);
  }
  EXPECT_EQ(row_format_name(RowFormat::kFp8DsMla), "fp8_ds_mla");
  EXPECT_EQ(row_format_name(static_cast<RowFormat>(200)), "unknown");
  EXPECT_EQ(index_key_format_name(static_cast<IndexKeyFormat>(200)), "unknown");
}

TEST(RowFormat, AnUnknownNameIsRefusedWithTheAcceptedOnes) {
  const Status row = row_format_from_name("fp8").status();
  EXPECT_EQ(row.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(row.message(), "row format \"fp8\" is unknown; accepted: fp8_ds_mla, fp8_row, nvfp4, bf16");
  const Status key = index_key_format_from_name("").status();
  EXPECT_EQ(key.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(key.message(), "index key format \"\" is unknown; accepted: mxfp4, nvfp4, fp8, bf16");
}

TEST(RowFormat, ProgrammingErrorsAreCaught) {
  EXPECT_THROW((void)block_shape(RowFormat::kBf16, 0), CheckFailure);
  EXPECT_THROW((void)block_shape(static_cast<RowFormat>(200), 1), CheckFailure);
  EXPECT_THROW((void)block_shape(static_cast<IndexKeyFormat>(200), 1), CheckFailure);
  const BlockShape shape = block_shape(RowFormat::kFp8DsMla, 2);
  std::vector<std::byte> block(static_cast<std::size_t>(shape.block_bytes));
  std::vector<float> values(kHeadDim);
  EXPECT_THROW(encode_row(RowFormat::kFp8DsMla, shape, values.data(), block.data(), 2), CheckFailure);
  EXPECT_THROW(encode_row(RowFormat::kFp8DsMla, shape, values.data(), block.data(), -1), CheckFailure);
  EXPECT_THROW(decode_row(RowFormat::kFp8Row, shape, block.data(), 0, values.data()), CheckFailure);
  EXPECT_THROW(encode_row(IndexKeyFormat::kFp8, shape, values.data(), block.data(), 0), CheckFailure);
}

// Lesson 9: an index-key block written "codes, then scales" and read as interleaved rows gives garbage.
// The codes of all rows come first and the scales of all rows follow, in every format and whatever the
// order of the writes.
TEST(RowFormat, Lesson9AllCodesComeBeforeAllScales) {
  constexpr int kRows = 7;
  for_each_format([](auto format) {
    const BlockShape one = block_shape(format, 1);
    const BlockShape many = block_shape(format, kRows);
    const auto data_bytes = static_cast<std::size_t>(one.data_bytes);
    const auto scale_bytes = static_cast<std::size_t>(one.scale_bytes);
    std::vector<std::byte> expected(static_cast<std::size_t>(many.block_bytes), std::byte{0x5a});
    std::vector<std::byte> block = expected;
    for (const int row : {3, 0, 6, 1, 5, 2, 4}) {
      const auto values = random_values(value_count(format), 100u + static_cast<unsigned>(row));
      std::vector<std::byte> single(static_cast<std::size_t>(one.block_bytes));
      encode_row(format, one, values.data(), single.data(), 0);
      const auto r = static_cast<std::size_t>(row);
      std::memcpy(expected.data() + r * data_bytes, single.data(), data_bytes);
      std::memcpy(expected.data() + kRows * data_bytes + r * scale_bytes, single.data() + data_bytes, scale_bytes);
      encode_row(format, many, values.data(), block.data(), row);
    }
    EXPECT_EQ(block, expected);  // padding included: it keeps its 0x5a
    for (int row = 0; row < kRows; ++row) {
      const auto values = random_values(value_count(format), 100u + static_cast<unsigned>(row));
      std::vector<std::byte> single(static_cast<std::size_t>(one.block_bytes));
      encode_row(format, one, values.data(), single.data(), 0);
      std::vector<float> from_block(values.size());
      std::vector<float> from_single(values.size());
      decode_row(format, many, block.data(), row, from_block.data());
      decode_row(format, one, single.data(), 0, from_single.data());
      EXPECT_EQ(from_block, from_single) << "row " << row;
    }
  });
}

TEST(RowFormat, EncodeTouchesOnlyItsRow) {
  constexpr int kRows = 4;
  constexpr std::size_t kCanaryBytes = 64;
  for_each_format([](auto format) {
    const BlockShape shape = block_shape(format, kRows);
    const auto values = random_values(value_count(format), 7);
    for (int row = 0; row < kRows; ++row) {
      // Under two poisons no written byte can hide behind an equal value.
      std::vector<bool> written(static_cast<std::size_t>(shape.block_bytes) + 2 * kCanaryBytes, false);
      for (const std::byte poison : {std::byte{0xa5}, std::byte{0x3c}}) {
        std::vector<std::byte> memory(written.size(), poison);
        encode_row(format, shape, values.data(), memory.data() + kCanaryBytes, row);
        for (std::size_t i = 0; i < memory.size(); ++i) {
          if (memory[i] != poison) written[i] = true;
        }
      }
      for (std::size_t i = 0; i < written.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i) - static_cast<std::int64_t>(kCanaryBytes);
        const bool in_data = at >= shape.data_offset(row) && at < shape.data_offset(row + 1);
        const bool in_scales = at >= shape.scale_offset(row) && at < shape.scale_offset(row + 1);
        ASSERT_EQ(written[i], in_data || in_scales) << "byte " << at << ", row " << row;
      }
    }
  });
}

// The defined result of NaN and infinities: they do not disturb the scale of their finite neighbours.
TEST(RowFormat, NonFiniteValues) {
  for_each_format([](auto format) {
    const BlockShape shape = block_shape(format, 1);
    std::vector<std::byte> clean_block(static_cast<std::size_t>(shape.block_bytes));
    std::vector<std::byte> block = clean_block;
    auto values = random_values(value_count(format), 11);
    values[0] = values[1] = values[2] = 0.0f;
    std::vector<float> clean(values.size());
    std::vector<float> decoded(values.size());
    encode_row(format, shape, values.data(), clean_block.data(), 0);
    decode_row(format, shape, clean_block.data(), 0, clean.data());
    values[0] = kQuietNan;
    values[1] = kInfinity;
    values[2] = -kInfinity;
    encode_row(format, shape, values.data(), block.data(), 0);
    decode_row(format, shape, block.data(), 0, decoded.data());
    EXPECT_EQ(std::isnan(decoded[0]), !has_four_bit_codes(format));
    if (has_four_bit_codes(format)) {
      EXPECT_EQ(decoded[0], 0.0f);
    }
    EXPECT_GT(decoded[1], 0.0f);
    EXPECT_EQ(decoded[2], -decoded[1]);
    for (std::size_t i = 3; i < decoded.size(); ++i) ASSERT_EQ(decoded[i], clean[i]) << "value " << i;
  });
}

TEST(RowFormat, RowsOfZerosDecodeToZeros) {
  for_each_format([](auto format) {
    const BlockShape shape = block_shape(format, 1);
    std::vector<std::byte> block(static_cast<std::size_t>(shape.block_bytes), std::byte{0xff});
    std::vector<float> values(static_cast<std::size_t>(value_count(format)), 0.0f);
    encode_row(format, shape, values.data(), block.data(), 0);
    values.assign(values.size(), 1.0f);
    decode_row(format, shape, block.data(), 0, values.data());
    for (const float value : values) ASSERT_EQ(value, 0.0f);
  });
}

// Zeroed memory, as a fresh pool has it, reads as zeros in every format.
TEST(RowFormat, ZeroedBlocksDecodeToZeros) {
  for_each_format([](auto format) {
    const BlockShape shape = block_shape(format, 2);
    const std::vector<std::byte> block(static_cast<std::size_t>(shape.block_bytes));
    std::vector<float> values(static_cast<std::size_t>(value_count(format)), 1.0f);
    decode_row(format, shape, block.data(), 1, values.data());
    for (const float value : values) ASSERT_EQ(value, 0.0f);
  });
}

// Largest |decoded - value| / max |value| over the first 448 values; the rope values must be equal.
float fp8_error_of_maximum(RowFormat format, const std::vector<float>& values) {
  std::vector<float> decoded(values.size());
  const BlockShape shape = block_shape(format, 1);
  std::vector<std::byte> block(static_cast<std::size_t>(shape.block_bytes));
  encode_row(format, shape, values.data(), block.data(), 0);
  decode_row(format, shape, block.data(), 0, decoded.data());
  float amax = 0.0f;
  float error = 0.0f;
  for (std::size_t i = 0; i < std::size_t{kNopeDim}; ++i) {
    amax = std::fmax(amax, std::fabs(values[i]));
    error = std::fmax(error, std::fabs(decoded[i] - values[i]));
  }
  for (std::size_t i = kNopeDim; i < values.size(); ++i) EXPECT_EQ(decoded[i], values[i]) << "value " << i;
  return error / amax;
}

// Seed 003 states an FP8 row error below 3.6 % of the row's maximum and exact rope values. With the
// maximum at code 448 half a step is 16 / 448 = 3.57 %.
TEST(RowFormat, Seed003Fp8RowErrorAndExactRope) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    EXPECT_LE(fp8_error_of_maximum(RowFormat::kFp8Row, random_values(kHeadDim, seed)), 0.036f) << "seed " << seed;
  }
}

// Power-of-two scales leave the maximum anywhere in (224, 448] steps: half a step is up to 1 / 17 of it.
TEST(RowFormat, Fp8DsMlaErrorAndExactRope) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    EXPECT_LE(fp8_error_of_maximum(RowFormat::kFp8DsMla, random_values(kHeadDim, seed)), 1.0f / 17.0f) << seed;
  }
}

}  // namespace
}  // namespace dsv4rt
