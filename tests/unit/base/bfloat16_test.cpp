#include "base/bfloat16.h"

#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace dsv4rt {
namespace {

constexpr std::uint32_t kPatterns = 0x10000;

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
bf16 pattern(std::uint32_t bits) { return {static_cast<std::uint16_t>(bits)}; }

bool is_nan_pattern(std::uint32_t bits) { return (bits & 0x7fffu) > 0x7f80u; }
bool is_infinite_pattern(std::uint32_t bits) { return (bits & 0x7fffu) == 0x7f80u; }

TEST(Bfloat16, EveryPatternThatIsNotNanSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    if (is_nan_pattern(bits)) continue;
    ASSERT_EQ(to_bf16(to_float(pattern(bits))).bits, bits);
  }
}

// The FP32 values half way between two neighbours, for every pair of neighbours and both signs,
// and their neighbours in FP32. The pattern after the largest finite one is infinity.
TEST(Bfloat16, EveryTieGoesToTheEvenPattern) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    if (is_nan_pattern(bits) || is_infinite_pattern(bits)) continue;
    const std::uint32_t tie = (bits << 16) | 0x8000u;
    const std::uint32_t even = (bits & 1u) == 0 ? bits : bits + 1;
    ASSERT_EQ(to_bf16(from_bits(tie)).bits, even) << std::hex << tie;
    ASSERT_EQ(to_bf16(from_bits(tie - 1)).bits, bits) << std::hex << tie;
    ASSERT_EQ(to_bf16(from_bits(tie + 1)).bits, bits + 1) << std::hex << tie;
  }
}

TEST(Bfloat16, OverflowAndInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_bf16(kInfinity).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-kInfinity).bits, 0xff80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::lowest()).bits, 0xff80);
  EXPECT_EQ(to_bf16(from_bits(0x7f7f7fffu)).bits, 0x7f7f);  // just below the last tie
}

TEST(Bfloat16, SignedZeroAndSubnormals) {
  EXPECT_EQ(to_bf16(0.0f).bits, 0x0000);
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_bf16(from_bits(0x00008000u)).bits, 0x0000);  // tie at half the smallest subnormal
  EXPECT_EQ(to_bf16(from_bits(0x00008001u)).bits, 0x0001);
  EXPECT_EQ(to_bf16(from_bits(0x80018000u)).bits, 0x8002);
}

// Payloads whose set bits all lie in the dropped half must not become infinity, and the carry of a
// full payload must not run into the sign.
TEST(Bfloat16, NanStaysAQuietNanOfTheSameSign) {
  for (const std::uint32_t payload : {0x000001u, 0x007fffu, 0x008000u, 0x00ffffu, 0x010000u, 0x3fffffu, 0x400000u,
                                      0x7fffffu}) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const bf16 rounded = to_bf16(from_bits(sign | 0x7f800000u | payload));
      EXPECT_TRUE(is_nan_pattern(rounded.bits)) << std::hex << payload;
      EXPECT_EQ(rounded.bits & 0x8000u, sign >> 16) << std::hex << payload;
      EXPECT_NE(rounded.bits & 0x0040u, 0u) << std::hex << payload;
      EXPECT_TRUE(std::isnan(to_float(rounded)));
    }
  }
}

TEST(Bfloat16, RoundingIsIdempotent) {
  for (const float value : {1.0f, 1.00390625f, -3.14159274f, 1e-20f, 65504.0f, 3.3e38f}) {
    const float once = round_to_bf16(value);
    EXPECT_EQ(round_to_bf16(once), once);
    EXPECT_LE(std::abs(once - value), std::abs(value) / 256.0f);
  }
}

}  // namespace
}  // namespace dsv4rt
