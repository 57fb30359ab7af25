#include "base/sine_cosine.h"

#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

namespace dsv4rt {
namespace {

// Units in the last place of FP32 between two values.
std::int64_t steps_between(float a, float b) {
  const auto order = [](float value) {
    const auto bits = std::bit_cast<std::int32_t>(value);
    return std::int64_t{bits < 0 ? INT32_MIN - bits : bits};
  };
  return std::abs(order(a) - order(b));
}

TEST(SineCosine, CorrectlyRoundedButForFewAngles) {
  std::int64_t different = 0;
  std::int64_t angles = 0;
  for (int i = 0; i < 32; ++i) {
    const auto frequency = static_cast<float>(std::pow(160000.0, -i / 32.0));
    for (std::int32_t position = 0; position < (1 << 21); position = position * 9 / 8 + 1) {
      const float angle = static_cast<float>(position) * frequency;
      const SineCosine actual = sine_cosine(angle);
      const auto sine = static_cast<float>(std::sin(static_cast<double>(angle)));
      const auto cosine = static_cast<float>(std::cos(static_cast<double>(angle)));
      ASSERT_LE(steps_between(actual.sine, sine), 1) << angle;
      ASSERT_LE(steps_between(actual.cosine, cosine), 1) << angle;
      different += (actual.sine != sine ? 1 : 0) + (actual.cosine != cosine ? 1 : 0);
      ++angles;
    }
  }
  EXPECT_GT(angles, 3000);
  EXPECT_LE(different, angles / 1000);
}

TEST(SineCosine, LargeAndNegativeAngles) {
  for (const float angle : {1e7F, 3.5e7F, 2.5e8F, 5e8F, -1.0F, -123.25F, -1e6F}) {
    const SineCosine actual = sine_cosine(angle);
    EXPECT_LE(steps_between(actual.sine, static_cast<float>(std::sin(static_cast<double>(angle)))), 1) << angle;
    EXPECT_LE(steps_between(actual.cosine, static_cast<float>(std::cos(static_cast<double>(angle)))), 1) << angle;
  }
  EXPECT_EQ(sine_cosine(0.0F).sine, 0.0F);
  EXPECT_EQ(sine_cosine(0.0F).cosine, 1.0F);
}

}  // namespace
}  // namespace dsv4rt
