#include "layout/codec_e2m1.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "unit/layout/float_samples.h"

namespace dsv4rt {
namespace {

constexpr double kMagnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

std::uint8_t nearest_e2m1_by_search(float value) {
  const double magnitude = std::fmin(std::fabs(static_cast<double>(value)), 6.0);  // saturation
  int best = 0;
  double best_distance = magnitude;
  for (int code = 1; code < 8; ++code) {
    const double distance = std::fabs(magnitude - kMagnitudes[code]);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 8 : 0));
}

TEST(CodecE2m1, EveryCodeDecodesToItsDefinitionAndEncodesBack) {
  for (int code = 0; code < 16; ++code) {
    SCOPED_TRACE(code);
    const float value = decode_e2m1(static_cast<std::uint8_t>(code));
    EXPECT_EQ(std::fabs(value), kMagnitudes[code & 7]);
    EXPECT_EQ(std::signbit(value), code >= 8);
    EXPECT_EQ(encode_e2m1(value), code);
  }
  EXPECT_EQ(decode_e2m1(0xf3), decode_e2m1(0x03));  // only the low nibble counts
}

TEST(CodecE2m1, TiesGoToTheEvenCodeAndTheirNeighboursToTheNearest) {
  for (int code = 0; code < 7; ++code) {
    SCOPED_TRACE(code);
    const auto tie = static_cast<float>((kMagnitudes[code] + kMagnitudes[code + 1]) / 2);
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(encode_e2m1(tie), even);
    EXPECT_EQ(encode_e2m1(next_above(tie)), code + 1);
    EXPECT_EQ(encode_e2m1(next_below(tie)), code);
    EXPECT_EQ(encode_e2m1(-tie), even | 8);
    EXPECT_EQ(encode_e2m1(-next_above(tie)), (code + 1) | 8);
    EXPECT_EQ(encode_e2m1(-next_below(tie)), code | 8);
  }
}

TEST(CodecE2m1, ZerosSaturationAndNan) {
  EXPECT_EQ(encode_e2m1(0.0f), 0);
  EXPECT_EQ(encode_e2m1(-0.0f), 8);
  EXPECT_EQ(encode_e2m1(float_of(1)), 0);
  EXPECT_EQ(encode_e2m1(float_of(0x80000001u)), 8);
  for (const float value : {6.0f, next_above(6.0f), 7.0f, 1e30f, 0x1.fffffep127f, kInfinity}) {
    EXPECT_EQ(encode_e2m1(value), 7);
    EXPECT_EQ(encode_e2m1(-value), 15);
  }
  for (const std::uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xffc00000u, 0xffffffffu}) {
    EXPECT_EQ(encode_e2m1(float_of(bits)), 0);
  }
}

TEST(CodecE2m1, AgreesWithASearchOverAllCodes) {
  std::int64_t wrong = 0;
  for_many_floats([&](float value) {
    const std::uint8_t expected = std::isnan(value) ? std::uint8_t{0} : nearest_e2m1_by_search(value);
    if (encode_e2m1(value) != expected && ++wrong < 10) ADD_FAILURE() << std::hexfloat << value;
    const bool same =
        std::bit_cast<std::uint32_t>(round_e2m1(value)) == std::bit_cast<std::uint32_t>(decode_e2m1(expected));
    if (!same && ++wrong < 10) ADD_FAILURE() << std::hexfloat << value;
  });
  EXPECT_EQ(wrong, 0);
}

TEST(CodecE2m1, PacksTheEvenValueLow) {
  EXPECT_EQ(pack_e2m1(0x1, 0xe), 0xe1);
  EXPECT_EQ(pack_e2m1(0xf, 0x0), 0x0f);
}

}  // namespace
}  // namespace dsv4rt
