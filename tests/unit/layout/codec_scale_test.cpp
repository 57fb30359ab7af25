// The rules that choose block scales: E8M0 for E4M3 and E2M1 blocks, E4M3 for NVFP4 groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "layout/amax.h"
#include "layout/codec_e8m0.h"
#include "layout/codec_mxfp4.h"
#include "layout/codec_nvfp4.h"
#include "unit/layout/float_samples.h"

namespace dsv4rt {
namespace {

// Smallest e with limit * 2^e >= amax, in doubles, where both sides are exact.
int exponent_by_search(double amax, double limit) {
  int exponent = -300;
  while (std::ldexp(limit, exponent) < amax) ++exponent;
  return exponent;
}

TEST(CeilLog2, PowersOfTwoAndTheirNeighbours) {
  for (int exponent = -149; exponent <= 127; ++exponent) {
    SCOPED_TRACE(exponent);
    const float power = std::ldexp(1.0f, exponent);
    EXPECT_EQ(ceil_log2(power), exponent);
    if (exponent < 127) {
      EXPECT_EQ(ceil_log2(next_above(power)), exponent + 1);
    }
    // Just below 2^e the answer is still e, except where the next float down is itself a power of two.
    const float below = next_below(power);
    if (below > 0.0f) {
      EXPECT_EQ(ceil_log2(below), below == power / 2 ? exponent - 1 : exponent);
    }
  }
  EXPECT_EQ(ceil_log2(std::numeric_limits<float>::max()), 128);
}

TEST(CodecE8m0, EveryCode) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(decode_e8m0(static_cast<std::uint8_t>(code)), std::ldexp(1.0f, code - 127)) << code;
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
}

TEST(CodecE8m0, ScaleStepsExactlyAtTheFormatsLimits) {
  for (int exponent = -22; exponent <= 119; ++exponent) {
    SCOPED_TRACE(exponent);
    const float full = std::ldexp(448.0f, exponent);
    EXPECT_EQ(e8m0_scale_for_e4m3(full), exponent + 127);
    EXPECT_EQ(e8m0_scale_for_e4m3(next_above(full)), exponent + 128);
    EXPECT_EQ(e8m0_scale_for_e4m3(next_below(full)), exponent + 127);
  }
  for (int exponent = -126; exponent <= 125; ++exponent) {
    SCOPED_TRACE(exponent);
    const float full = std::ldexp(6.0f, exponent);
    EXPECT_EQ(e8m0_scale_for_e2m1(full), exponent + 127);
    EXPECT_EQ(e8m0_scale_for_e2m1(next_above(full)), exponent + 128);
    EXPECT_EQ(e8m0_scale_for_e2m1(next_below(full)), std::max(exponent, -126) + 127);
  }
}

TEST(CodecE8m0, ScaleAtPowersOfTwoAndRandomMaxima) {
  const auto check = [](float amax) {
    const double floored_e4m3 = std::max(amax, kE4m3AmaxFloor);
    const double floored_e2m1 = std::max(amax, kE2m1AmaxFloor);
    ASSERT_EQ(e8m0_scale_for_e4m3(amax) - 127, exponent_by_search(floored_e4m3, 448)) << std::hexfloat << amax;
    ASSERT_EQ(e8m0_scale_for_e2m1(amax) - 127, exponent_by_search(floored_e2m1, 6)) << std::hexfloat << amax;
  };
  for (int exponent = -149; exponent <= 127; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    check(power);
    check(next_above(power));
    check(next_below(power));
  }
  for (const float factor : {1.25f, 1.5f, 1.75f, 1.9f}) {
    for (int exponent = -126; exponent <= 127; ++exponent) {
      check(std::ldexp(factor, exponent));
      check(next_above(std::ldexp(factor, exponent)));
      check(next_below(std::ldexp(factor, exponent)));
    }
  }
  check(std::numeric_limits<float>::max());
}

// Kernels that multiply by the reciprocal of the limit instead of dividing choose the same scales.
TEST(CodecE8m0, ReciprocalMultiplicationGivesTheSameScale) {
  for (int exponent = -20; exponent <= 100; ++exponent) {
    for (const float limit : {448.0f, 6.0f}) {
      const float full = std::ldexp(limit, exponent);
      for (const float amax : {full, next_above(full), next_below(full)}) {
        EXPECT_EQ(ceil_log2(amax / limit), ceil_log2(amax * (1.0f / limit))) << std::hexfloat << amax;
      }
    }
  }
}

TEST(CodecE8m0, Floors) {
  EXPECT_EQ(kE4m3AmaxFloor, 1e-4f);
  EXPECT_EQ(kE2m1AmaxFloor, std::ldexp(6.0f, -126));
  // 1e-4 / 448 = 2^-22.09...
  for (const float amax : {0.0f, float_of(1), 5e-5f, next_below(1e-4f), 1e-4f, next_above(1e-4f)}) {
    EXPECT_EQ(e8m0_scale_for_e4m3(amax), 127 - 22) << amax;
  }
  EXPECT_EQ(e8m0_scale_for_e4m3(next_above(std::ldexp(448.0f, -22))), 127 - 21);
  for (const float amax : {0.0f, float_of(1), 0x1p-126f, kE2m1AmaxFloor}) EXPECT_EQ(e8m0_scale_for_e2m1(amax), 1);
  EXPECT_EQ(e8m0_scale_for_e2m1(next_above(kE2m1AmaxFloor)), 2);
}

TEST(FiniteAmax, IgnoresNanAndInfinity) {
  const std::array<float, 6> mixed = {1.0f, -kQuietNan, -3.5f, kInfinity, kQuietNan, -kInfinity};
  EXPECT_EQ(finite_amax(mixed.data(), mixed.size()), 3.5f);
  const std::array<float, 3> none = {kQuietNan, kInfinity, -kInfinity};
  EXPECT_EQ(finite_amax(none.data(), none.size()), 0.0f);
  EXPECT_EQ(finite_amax(none.data(), 0), 0.0f);
  const std::array<float, 2> zeros = {-0.0f, 0.0f};
  EXPECT_FALSE(std::signbit(finite_amax(zeros.data(), zeros.size())));
  const std::array<float, 2> extremes = {-std::numeric_limits<float>::max(), 1.0f};
  EXPECT_EQ(finite_amax(extremes.data(), extremes.size()), std::numeric_limits<float>::max());
}

TEST(CodecMxfp4, GroupBytes) {
  std::array<float, 32> values{};
  const std::array<float, 8> first = {0.0f, 2.0f, -4.0f, 6.0f, 8.0f, -12.0f, 16.0f, 24.0f};
  std::copy(first.begin(), first.end(), values.begin());
  values[31] = -24.0f;
  std::array<std::byte, 16> codes{};
  EXPECT_EQ(encode_mxfp4_group(values.data(), codes.data()), 129);  // 24 / 6 = 2^2
  const std::array<int, 16> expected = {0x10, 0x3a, 0xd4, 0x76, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0};
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(std::to_integer<int>(codes[i]), expected[i]) << i;
}

TEST(CodecNvfp4, GroupScale) {
  EXPECT_EQ(nvfp4_group_scale(0.0f), 0x00);
  EXPECT_EQ(nvfp4_group_scale(6.0f), 0x38);                    // 1.0
  EXPECT_EQ(nvfp4_group_scale(6.0f * 448.0f), 0x7e);
  EXPECT_EQ(nvfp4_group_scale(1e30f), 0x7e);                   // saturates
  EXPECT_EQ(nvfp4_group_scale(6.0f * 0x1p-9f), 0x01);
  EXPECT_EQ(nvfp4_group_scale(6.0f * 0x1p-10f), 0x00);         // tie to the even code: the group is erased
  EXPECT_EQ(nvfp4_group_scale(next_above(6.0f * 0x1p-10f)), 0x01);
  EXPECT_EQ(nvfp4_group_scale(6.0f, 0.5f), 0x40);              // 2.0 under a global scale of one half
}

TEST(CodecNvfp4, GroupBytesWithAGlobalScale) {
  std::array<float, 16> values{};
  const std::array<float, 8> first = {0.0f, 0.25f, -0.5f, 0.75f, 1.0f, -1.5f, 2.0f, 3.0f};
  std::copy(first.begin(), first.end(), values.begin());
  std::array<std::byte, 8> codes{};
  EXPECT_EQ(encode_nvfp4_group(values.data(), codes.data(), 0.25f), 0x40);  // 3 / 6 / 0.25 = 2
  const std::array<int, 8> expected = {0x10, 0x3a, 0xd4, 0x76, 0, 0, 0, 0};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(std::to_integer<int>(codes[i]), expected[i]) << i;
  std::array<float, 16> decoded{};
  decode_nvfp4_group(codes.data(), 0x40, decoded.data(), 0.25f);
  EXPECT_EQ(decoded, values);
}

TEST(CodecNvfp4, AZeroScaleErasesTheGroup) {
  std::array<float, 16> values;
  values.fill(-1e-6f);
  values[3] = kInfinity;
  values[4] = kQuietNan;
  std::array<std::byte, 8> codes;
  codes.fill(std::byte{0xaa});
  EXPECT_EQ(encode_nvfp4_group(values.data(), codes.data()), 0);
  for (const std::byte code : codes) EXPECT_EQ(code, std::byte{0});
  decode_nvfp4_group(codes.data(), 0, values.data());
  for (const float value : values) EXPECT_EQ(value, 0.0f);
}

}  // namespace
}  // namespace dsv4rt
