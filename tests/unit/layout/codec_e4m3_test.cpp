#include "layout/codec_e4m3.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "unit/layout/float_samples.h"

namespace dsv4rt {
namespace {

// The value of a positive code by the definition of the format.
double value_of(int code) {
  const int exponent = code / 8;
  const int mantissa = code % 8;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

// The nearest code by looking at all of them; of two equally near ones the even.
std::uint8_t nearest_e4m3_by_search(float value) {
  const double magnitude = std::fmin(std::fabs(static_cast<double>(value)), 448.0);  // saturation
  int best = 0;
  double best_distance = magnitude;
  for (int code = 1; code <= 0x7e; ++code) {
    const double distance = std::fabs(magnitude - value_of(code));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

TEST(CodecE4m3, EveryCodeDecodesToItsDefinitionAndEncodesBack) {
  for (int code = 0; code < 256; ++code) {
    SCOPED_TRACE(code);
    const auto byte = static_cast<std::uint8_t>(code);
    const float value = decode_e4m3(byte);
    EXPECT_EQ(std::signbit(value), code >= 128);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(std::fabs(static_cast<double>(value)), value_of(code & 0x7f));
    }
    EXPECT_EQ(encode_e4m3(value), byte);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(kE4m3Values[byte]), std::bit_cast<std::uint32_t>(value));
  }
}

TEST(CodecE4m3, TiesGoToTheEvenCodeAndTheirNeighboursToTheNearest) {
  for (int code = 0; code < 0x7e; ++code) {
    SCOPED_TRACE(code);
    const auto tie = static_cast<float>((value_of(code) + value_of(code + 1)) / 2);
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(encode_e4m3(tie), even);
    EXPECT_EQ(encode_e4m3(next_above(tie)), code + 1);
    EXPECT_EQ(encode_e4m3(next_below(tie)), code);
    EXPECT_EQ(encode_e4m3(-tie), even | 0x80);
    EXPECT_EQ(encode_e4m3(-next_above(tie)), (code + 1) | 0x80);
    EXPECT_EQ(encode_e4m3(-next_below(tie)), code | 0x80);
  }
}

TEST(CodecE4m3, ZerosAndUnderflowKeepTheirSign) {
  EXPECT_EQ(encode_e4m3(0.0f), 0x00);
  EXPECT_EQ(encode_e4m3(-0.0f), 0x80);
  EXPECT_EQ(encode_e4m3(float_of(1)), 0x00);  // smallest FP32 subnormal
  EXPECT_EQ(encode_e4m3(float_of(0x80000001u)), 0x80);
  EXPECT_EQ(encode_e4m3(0x1p-10f), 0x00);  // tie between 0 and the smallest code
  EXPECT_EQ(encode_e4m3(-0x1p-10f), 0x80);
  EXPECT_EQ(encode_e4m3(0x1.8p-9f), 0x02);
  EXPECT_EQ(encode_e4m3(0x1.ep-7f), 0x08);  // 7.5 subnormal steps: ties into the first normal
}

TEST(CodecE4m3, LargeValuesSaturate) {
  for (const float value : {448.0f, next_above(448.0f), 464.0f, 480.0f, 1e30f, 0x1.fffffep127f, kInfinity}) {
    SCOPED_TRACE(value);
    EXPECT_EQ(encode_e4m3(value), 0x7e);
    EXPECT_EQ(encode_e4m3(-value), 0xfe);
  }
  EXPECT_EQ(encode_e4m3(next_below(448.0f)), 0x7e);
  EXPECT_EQ(encode_e4m3(432.0f), 0x7e);  // tie of 416 and 448
  EXPECT_EQ(encode_e4m3(next_below(432.0f)), 0x7d);
}

TEST(CodecE4m3, NanKeepsItsSign) {
  for (const std::uint32_t bits : {0x7fc00000u, 0x7f800001u, 0x7fffffffu}) {
    EXPECT_EQ(encode_e4m3(float_of(bits)), 0x7f);
    EXPECT_EQ(encode_e4m3(float_of(bits | 0x80000000u)), 0xff);
  }
}

TEST(CodecE4m3, AgreesWithASearchOverAllCodes) {
  std::int64_t visited = 0;
  std::int64_t wrong = 0;
  for_many_floats([&](float value) {
    ++visited;
    if (std::isnan(value)) {
      wrong += encode_e4m3(value) == (std::signbit(value) ? 0xff : 0x7f) ? 0 : 1;
      return;
    }
    if (encode_e4m3(value) != nearest_e4m3_by_search(value) && ++wrong < 10) ADD_FAILURE() << std::hexfloat << value;
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(visited, 2'000'000);
}

TEST(CodecE4m3, RoundingInPlaceEqualsEncodingAndDecoding) {
  std::int64_t wrong = 0;
  for_many_floats([&](float value) {
    const float expected = decode_e4m3(encode_e4m3(value));
    const float rounded = round_e4m3(value);
    const bool same_bits = std::bit_cast<std::uint32_t>(rounded) == std::bit_cast<std::uint32_t>(expected);
    const bool same = std::isnan(value) ? std::isnan(rounded) : same_bits;
    if (!same && ++wrong < 10) ADD_FAILURE() << std::hexfloat << value << " gives " << rounded;
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace dsv4rt
