#include "model/rope.h"

#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "unit/model/sample_configs.h"

namespace dsv4rt {
namespace {

ModelConfig released_config() {
  return *ModelConfig::from_file(test::config_path("deepseek-v4-flash.json"));
}

// Evaluated in double precision from the definitions, apart from this library.
constexpr std::array<double, kRopePairs> kPlainFrequencies = {
    1, 0.749894209332, 0.56234132519, 0.421696503429,
    0.316227766017, 0.237137370566, 0.177827941004, 0.133352143216,
    0.1, 0.0749894209332, 0.056234132519, 0.0421696503429,
    0.0316227766017, 0.0237137370566, 0.0177827941004, 0.0133352143216,
    0.01, 0.00749894209332, 0.0056234132519, 0.00421696503429,
    0.00316227766017, 0.00237137370566, 0.00177827941004, 0.00133352143216,
    0.001, 0.000749894209332, 0.00056234132519, 0.000421696503429,
    0.000316227766017, 0.000237137370566, 0.000177827941004, 0.000133352143216};
constexpr std::array<double, kRopePairs> kCompressedFrequencies = {
    1, 0.687656021934, 0.472870804502, 0.325172456312,
    0.22360679775, 0.153764561018, 0.105737126344, 0.0727107716724,
    0.05, 0.0343828010967, 0.0236435402251, 0.0162586228156,
    0.0111803398875, 0.0076882280509, 0.0052868563172, 0.00363553858362,
    0.002265625, 0.00139680129455, 0.000849689726839, 0.000508081962988,
    0.000296977778262, 0.000168179988614, 9.08678429519e-05, 4.54442322953e-05,
    1.953125e-05, 5.37231267136e-06, 3.69430316017e-06, 2.54040981494e-06,
    1.74692810742e-06, 1.20128563295e-06, 8.26071299563e-07, 5.68052903691e-07};

// The same in FP32 with the reference's order of roundings, bit for bit.
constexpr std::array<std::uint32_t, kRopePairs> kPlainBits = {
    0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887, 0x3e088d77,
    0x3dcccccd, 0x3d99940d, 0x3d6655c2, 0x3d2cba15, 0x3d0186e3, 0x3cc2434f, 0x3c91ad39, 0x3c5a7bf2,
    0x3c23d70a, 0x3bf5b9b0, 0x3bb8449c, 0x3b8a2e77, 0x3b4f3e38, 0x3b1b690d, 0x3ae91528, 0x3aaec98e,
    0x3a83126f, 0x3a44948c, 0x3a136a16, 0x39dd1725, 0x39a5cb60, 0x3978a815, 0x393a7753, 0x390bd472};
constexpr std::array<std::uint32_t, kRopePairs> kCompressedBits = {
    0x3f800000, 0x3f300a3a, 0x3ef21c1f, 0x3ea67d01, 0x3e64f92e, 0x3e1d7475, 0x3dd88cb4, 0x3d94e963,
    0x3d4ccccd, 0x3d0cd4fb, 0x3cc1b019, 0x3c8530ce, 0x3c372dbf, 0x3bfbed88, 0x3bad3d5e, 0x3b6e4237,
    0x3b147ae1, 0x3ab714e0, 0x3a5ebdb6, 0x3a0530ce, 0x399bb3af, 0x39305978, 0x38be904d, 0x383e9b5f,
    0x37a3d70c, 0x36b443d0, 0x3677eba6, 0x362a7be8, 0x35ea77ff, 0x35a13bdc, 0x355dbf30, 0x35187c4d};

// Four roundings of half an FP32 unit each.
constexpr double kRelativeTolerance = 4 * 6e-8;

void expect_frequencies(const RopeFrequencies& actual, const std::array<double, kRopePairs>& expected,
                        const std::array<std::uint32_t, kRopePairs>& bits) {
  for (std::size_t pair = 0; pair < actual.size(); ++pair) {
    EXPECT_NEAR(actual[pair], expected[pair], expected[pair] * kRelativeTolerance) << pair;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(actual[pair]), bits[pair]) << pair;
  }
}

TEST(Rope, PlainLayers) {
  expect_frequencies(rope_frequencies(released_config(), RopeChoice::kPlain), kPlainFrequencies, kPlainBits);
}

TEST(Rope, CompressedLayers) {
  expect_frequencies(rope_frequencies(released_config(), RopeChoice::kCompressed), kCompressedFrequencies,
                     kCompressedBits);
}

TEST(Rope, RampOfTheReleasedValuesRunsOverPairs15To25) {
  ModelConfig config = released_config();
  const RopeFrequencies scaled = rope_frequencies(config, RopeChoice::kCompressed);
  config.rope_scaling.reset();
  const RopeFrequencies plain = rope_frequencies(config, RopeChoice::kCompressed);
  for (std::size_t pair = 0; pair < scaled.size(); ++pair) {
    if (pair <= 15) {
      EXPECT_EQ(scaled[pair], plain[pair]) << pair;
    } else if (pair < 25) {
      EXPECT_LT(scaled[pair], plain[pair]) << pair;
      EXPECT_GT(scaled[pair], plain[pair] / 16.0f) << pair;
    } else {
      EXPECT_EQ(scaled[pair], plain[pair] / 16.0f) << pair;
    }
  }
}

TEST(Rope, YarnNeverTouchesPlainLayers) {
  ModelConfig config = released_config();
  const RopeFrequencies with = rope_frequencies(config, RopeChoice::kPlain);
  config.rope_scaling.reset();
  EXPECT_EQ(with, rope_frequencies(config, RopeChoice::kPlain));
}

// The two choices agree on pair 0 and drift apart slowly: that is why a wrong choice per layer hides
// within the window. Past it they must differ by whole turns.
TEST(Rope, Lesson15ChoicesDifferFarBeyondTheWindow) {
  const ModelConfig config = released_config();
  const RopeFrequencies plain = rope_frequencies(config, RopeChoice::kPlain);
  const RopeFrequencies compressed = rope_frequencies(config, RopeChoice::kCompressed);
  EXPECT_EQ(plain[0], compressed[0]);
  for (std::size_t pair = 1; pair < plain.size(); ++pair) EXPECT_GT(plain[pair], compressed[pair]) << pair;
  EXPECT_GT(4096.0f * (plain[16] - compressed[16]), 2.0f * 3.14159265f);
}

// Everything a config may hold must give finite frequencies that never grow with the pair.
TEST(Rope, ExtremeAcceptedSettingsStayFiniteAndOrdered) {
  ModelConfig config = released_config();
  for (const double theta : {2.0, 1e4, 1e12}) {
    for (const double factor : {1.0, 1e6}) {
      for (const double fast : {1e-3, 32.0, 1e6}) {
        for (const std::int64_t original : {std::int64_t{1}, std::int64_t{65536}, std::int64_t{1} << 24}) {
          config.compress_rope_theta = theta;
          config.rope_scaling = YarnScaling{factor, fast, 1e-3, original};
          ASSERT_TRUE(config.validate("extreme").ok()) << config.validate("extreme").message();
          const RopeFrequencies frequencies = rope_frequencies(config, RopeChoice::kCompressed);
          for (std::size_t pair = 0; pair < frequencies.size(); ++pair) {
            ASSERT_TRUE(std::isfinite(frequencies[pair]));
            ASSERT_GT(frequencies[pair], 0.0f);
            ASSERT_LE(frequencies[pair], frequencies[pair == 0 ? 0 : pair - 1]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4rt
