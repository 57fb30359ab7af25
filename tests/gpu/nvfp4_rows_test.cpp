// NVFP4 weights in the order that cuBLASLt reads. Needs no GPU.
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/kernels/linear/packing/nvfp4_scale_tiles.h"
#include "backend/cuda/kernels/linear/packing/packed_bytes.h"
#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "gpu/support/nvfp4_operand.h"
#include "layout/codec_nvfp4.h"
#include "support/expect_ok.h"
#include "support/test_backend.h"
#include "unit/backend/linear_matrix.h"

namespace dsv4rt::test {
namespace {

using cuda::can_be_rows;
using cuda::nvfp4_scale_bytes;
using cuda::nvfp4_scale_offset;
using cuda::row_copy_bytes;

// Places worked out by hand from the figures and formulas of the cuBLAS documentation.
static_assert(nvfp4_scale_offset(0, 3, 4) == 3);
static_assert(nvfp4_scale_offset(1, 0, 4) == 16);
static_assert(nvfp4_scale_offset(31, 0, 4) == 496);
static_assert(nvfp4_scale_offset(32, 0, 4) == 4);
static_assert(nvfp4_scale_offset(33, 2, 4) == 16 + 4 + 2);
static_assert(nvfp4_scale_offset(64, 1, 4) == 8 + 1);
static_assert(nvfp4_scale_offset(127, 3, 4) == 511);
static_assert(nvfp4_scale_offset(0, 4, 8) == 512);               // the tile to the right
static_assert(nvfp4_scale_offset(128, 0, 8) == 1024);            // below the two tiles of 128 rows
static_assert(nvfp4_scale_offset(128 + 33, 6, 8) == 1536 + 22);  // the fourth
static_assert(nvfp4_scale_offset(128, 0, 5) == 1024);            // five groups take two tiles
static_assert(nvfp4_scale_bytes(1, 1) == 512 && nvfp4_scale_bytes(129, 5) == 2048);

TEST(Nvfp4ScaleTiles, EveryPlaceIsTakenOnce) {
  for (const std::int64_t rows : {1, 32, 128, 130, 384}) {
    for (const std::int64_t groups : {2, 4, 6, 12, 64}) {
      std::vector<int> taken(static_cast<std::size_t>(nvfp4_scale_bytes(rows, groups)));
      for (std::int64_t row = 0; row < round_up<std::int64_t>(rows, 128); ++row) {
        for (std::int64_t group = 0; group < round_up<std::int64_t>(groups, 4); ++group) {
          ++taken.at(static_cast<std::size_t>(nvfp4_scale_offset(row, group, groups)));
        }
      }
      for (const int count : taken) ASSERT_EQ(count, 1) << rows << " x " << groups;
    }
  }
}

class Nvfp4RowsTest : public ::testing::Test {
 protected:
  // A slice of a stored matrix.
  HostLinear slice(std::int64_t stored, std::int64_t first, std::int64_t rows, std::int64_t inputs) {
    fill_matrix(matrix_, WeightEncoding::kNvfp4, ActivationRounding::kNone, stored, inputs, 7);
    matrix_.host.input_scale = 0x1p-5F;
    return matrix_.host.rows(first, rows);
  }

  TestMatrix matrix_;
};

TEST_F(Nvfp4RowsTest, ReadBackThroughTheLayout) {
  for (const std::int64_t inputs : {32, 96, 512}) {
    constexpr std::int64_t kFirst = 48;
    constexpr std::int64_t kRows = 272;
    const HostLinear weight = slice(kFirst + kRows + 16, kFirst, kRows, inputs);
    ASSERT_TRUE(can_be_rows(weight));
    const cuda::PackedBytes packed = cuda::pack_rows(weight);
    const auto bytes = static_cast<std::int64_t>(packed.codes.size + packed.scales.size);
    EXPECT_EQ(bytes, row_copy_bytes(weight));
    EXPECT_EQ(bytes, kRows * inputs / 2 + 384 * round_up<std::int64_t>(inputs / 16, 4));
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t k = 0; k < inputs; ++k) {
        const float expected = matrix_.values[static_cast<std::size_t>((kFirst + row) * inputs + k)];
        // Bits, since a sign moves from a scale to its codes.
        ASSERT_EQ(std::bit_cast<std::uint32_t>(nvfp4_value(packed.codes.view(), packed.scales.view(), inputs, row, k)),
                  std::bit_cast<std::uint32_t>(expected))
            << row << " " << k;
      }
    }
    for (std::int64_t row = 0; row < 384; ++row) {
      for (std::int64_t group = 0; group < round_up<std::int64_t>(inputs / 16, 4); ++group) {
        const std::byte scale =
            packed.scales.view()[static_cast<std::size_t>(nvfp4_scale_offset(row, group, inputs / 16))];
        ASSERT_TRUE((row < kRows && group < inputs / 16) || scale == std::byte{}) << row << " " << group;
      }
    }
  }
}

// What CublasLtLinear asks of cuBLASLt, by the documented meaning of its operands: codes times scales, summed, times
// both global scales. The input scale is a power of two, so that rounded inputs are BF16 values.
TEST_F(Nvfp4RowsTest, ProductOfPackedOperands) {
  constexpr std::int64_t kRows = 160;
  constexpr std::int64_t kInputs = 288;
  const HostLinear weight = slice(kRows, 0, kRows, kInputs);
  const cuda::PackedBytes packed = cuda::pack_rows(weight);
  std::mt19937 random(8);
  std::vector<std::byte> codes(kInputs / 2);
  std::vector<std::byte> scales(static_cast<std::size_t>(nvfp4_scale_bytes(1, kInputs / 16)));
  std::vector<bf16> rounded(kInputs);
  for (std::int64_t group = 0; group < kInputs / 16; ++group) {
    std::array<float, 16> values;
    for (float& value : values) value = to_float(random_bf16(random, -6, 3));
    const std::uint8_t scale = encode_nvfp4_group(values.data(), codes.data() + group * 8, weight.input_scale);
    scales[static_cast<std::size_t>(nvfp4_scale_offset(0, group, kInputs / 16))] = std::byte{scale};
    decode_nvfp4_group(codes.data() + group * 8, scale, values.data(), weight.input_scale);
    for (std::size_t i = 0; i < 16; ++i) {
      bf16& value = rounded[static_cast<std::size_t>(group) * 16 + i];
      value = to_bf16(values[i]);
      ASSERT_EQ(to_float(value), values[i]);
    }
  }
  const auto cpu = create_cpu_test_backend();
  ASSERT_OK(cpu);
  const auto host_weight = (*cpu)->pack_linear(weight);
  ASSERT_OK(host_weight);
  std::vector<float> expected(kRows);
  const LinearCall call{rounded.data(), kInputs, host_weight->get(), expected.data(), kRows, OutputType::kF32};
  ASSERT_OK((*cpu)->ops().linear(1, std::span(&call, 1)));
  const double global = double{weight.input_scale} * double{weight.global_scale};
  for (std::int64_t row = 0; row < kRows; ++row) {
    double sum = 0;
    double magnitude = 0;
    for (std::int64_t k = 0; k < kInputs; ++k) {
      const double term = global * double{nvfp4_value(packed.codes.view(), packed.scales.view(), kInputs, row, k)} *
                          double{nvfp4_value(codes, scales, kInputs, 0, k)};
      sum += term;
      magnitude += std::fabs(term);
    }
    EXPECT_NEAR(double{expected[static_cast<std::size_t>(row)]}, sum, 1e-6 * magnitude) << row;
  }
}

// Inputs are rounded only where the checkpoint says how, and where cuBLASLt takes the shape.
TEST_F(Nvfp4RowsTest, HeldOnlyWithAnInputScale) {
  HostLinear weight = slice(128, 0, 128, 64);
  EXPECT_TRUE(can_be_rows(weight));
  weight.in_features = 48;  // 24 bytes of codes
  EXPECT_FALSE(can_be_rows(weight));
  weight.in_features = 64;
  weight.out_features = 120;
  EXPECT_FALSE(can_be_rows(weight));
  weight.out_features = 128;
  weight.input_scale = 0;
  EXPECT_FALSE(can_be_rows(weight));
  EXPECT_EQ(row_copy_bytes(weight), 0);
  for (const WeightEncoding encoding : {WeightEncoding::kBf16, WeightEncoding::kFp8Block128}) {
    TestMatrix other;
    fill_matrix(other, encoding, ActivationRounding::kNone, 128, 128, 9);
    other.host.input_scale = 0x1p-5F;
    EXPECT_FALSE(can_be_rows(other.host));
  }
}

}  // namespace
}  // namespace dsv4rt::test
