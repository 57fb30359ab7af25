// Bytes of one row of every format against literals that golden_rows.py computed without the library.
#include "unit/layout/golden_rows.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "dsv4rt/model.h"
#include "layout/row_format.h"

namespace dsv4rt {
namespace {

constexpr std::byte kPoison{0xa5};
constexpr std::int32_t kRows = 5;
constexpr std::int64_t kRow = 3;

// The same formula as value() of golden_rows.py.
float golden_value(int i) {
  return std::ldexp(static_cast<float>((i * 1237 + 19) % 4099 - 2049), (i / 16) % 9 - 14);
}

std::vector<float> golden_values(int count) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(golden_value(i));
  return values;
}

// Encodes the golden values as row 3 of a poisoned block of 5 and checks every byte of the block: the
// data bytes at 3 * data size, the scale bytes after all data, nothing else changed.
template <class Format, std::size_t DataBytes, std::size_t ScaleBytes>
void expect_golden(Format format, int value_count, const std::array<unsigned char, DataBytes>& data,
                   const std::array<unsigned char, ScaleBytes>& scales) {
  const BlockShape shape = block_shape(format, kRows);
  std::vector<std::byte> block(static_cast<std::size_t>(shape.block_bytes), kPoison);
  std::vector<std::byte> expected = block;
  for (std::size_t i = 0; i < DataBytes; ++i) expected[kRow * DataBytes + i] = std::byte{data[i]};
  for (std::size_t i = 0; i < ScaleBytes; ++i) {
    expected[kRows * DataBytes + kRow * ScaleBytes + i] = std::byte{scales[i]};
  }
  const std::vector<float> values = golden_values(value_count);
  encode_row(format, shape, values.data(), block.data(), kRow);
  for (std::size_t i = 0; i < block.size(); ++i) ASSERT_EQ(block[i], expected[i]) << "byte " << i << " of the block";

  // The way back: four-bit codes are within a sixth of their group's maximum, everything else is closer.
  std::vector<float> decoded(values.size());
  decode_row(format, shape, block.data(), kRow, decoded.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t group = i / 32 * 32;
    float amax = 0.0f;
    for (std::size_t j = group; j < group + 32; ++j) amax = std::fmax(amax, std::fabs(values[j]));
    ASSERT_LE(std::fabs(decoded[i] - values[i]), amax / 6.0f * 1.1f) << "value " << i;
  }
}

TEST(GoldenRows, Fp8DsMla) {
  expect_golden(RowFormat::kFp8DsMla, kHeadDim, kGoldenFp8DsMlaData, kGoldenFp8DsMlaScales);
}
TEST(GoldenRows, Fp8Row) { expect_golden(RowFormat::kFp8Row, kHeadDim, kGoldenFp8RowData, kGoldenFp8RowScales); }
TEST(GoldenRows, Nvfp4Row) { expect_golden(RowFormat::kNvfp4, kHeadDim, kGoldenNvfp4RowData, kGoldenNvfp4RowScales); }
TEST(GoldenRows, Bf16Row) { expect_golden(RowFormat::kBf16, kHeadDim, kGoldenBf16RowData, kGoldenBf16RowScales); }

TEST(GoldenRows, Mxfp4Key) {
  expect_golden(IndexKeyFormat::kMxfp4, kIndexHeadDim, kGoldenMxfp4KeyData, kGoldenMxfp4KeyScales);
}
TEST(GoldenRows, Nvfp4Key) {
  expect_golden(IndexKeyFormat::kNvfp4, kIndexHeadDim, kGoldenNvfp4KeyData, kGoldenNvfp4KeyScales);
}
TEST(GoldenRows, Fp8Key) {
  expect_golden(IndexKeyFormat::kFp8, kIndexHeadDim, kGoldenFp8KeyData, kGoldenFp8KeyScales);
}
TEST(GoldenRows, Bf16Key) {
  expect_golden(IndexKeyFormat::kBf16, kIndexHeadDim, kGoldenBf16KeyData, kGoldenBf16KeyScales);
}

// A row whose bytes can be read off the format description.
TEST(GoldenRows, Fp8DsMlaByHand) {
  std::vector<float> values(kHeadDim, 0.0f);
  values[0] = 448.0f;     // group 0: scale 1
  values[1] = -1.0f;
  values[64] = 896.0f;    // group 1: scale 2
  values[65] = 2.0f;
  values[447] = -0.875f;  // group 6: 0.875 = 448 * 2^-9
  values[448] = 1.0f;
  values[511] = -2.5f;
  const BlockShape shape = block_shape(RowFormat::kFp8DsMla, 1);
  std::vector<std::byte> block(static_cast<std::size_t>(shape.block_bytes), std::byte{0});
  encode_row(RowFormat::kFp8DsMla, shape, values.data(), block.data(), 0);

  std::vector<std::byte> expected(1152, std::byte{0});
  const auto set = [&expected](std::size_t at, int byte) { expected[at] = static_cast<std::byte>(byte); };
  set(0, 0x7e);
  set(1, 0xb8);
  set(64, 0x7e);
  set(65, 0x38);
  set(447, 0xfe);
  set(448, 0x80), set(449, 0x3f);  // BF16 1.0
  set(574, 0x20), set(575, 0xc0);  // BF16 -2.5
  set(576, 127), set(577, 128);
  for (std::size_t group = 2; group < 6; ++group) set(576 + group, 127 - 22);  // zeros: the floor
  set(582, 127 - 9);
  EXPECT_EQ(block, expected);
}

}  // namespace
}  // namespace dsv4rt
