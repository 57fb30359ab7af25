// Row kernels of every instruction-set level: decoders against the scalar truth, exp, top-k.
#include "backend/cpu/row_kernels.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "backend/cpu/exp_lanes.h"
#include "backend/cpu/hadamard.h"
#include "backend/cpu/top_k.h"
#include "layout/rounding.h"
#include "unit/backend/ops_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

// Random bytes hold every code under every scale, NaN codes and NaN scales included.
template <class Format, class Decode>
void check_decoder(Format format, int dims, bool rounds_to_bf16, Decode decode) {
  const BlockShape shape = block_shape(format, 5);
  std::set<std::byte> seen;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const auto block = poisoned(static_cast<std::size_t>(shape.block_bytes), seed);
    for (int row = 0; row < 5; ++row) {
      std::vector<float> expected(static_cast<std::size_t>(dims));
      decode_row(format, shape, block.data(), row, expected.data());
      if (rounds_to_bf16) std::transform(expected.begin(), expected.end(), expected.begin(), round_to_bf16);
      std::vector<float> actual(static_cast<std::size_t>(dims), 123.0f);
      decode(format, shape, block.data(), row, actual.data());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (std::isnan(expected[i])) {
          ASSERT_TRUE(std::isnan(actual[i])) << "seed " << seed << " value " << i;
        } else {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i]))
              << "seed " << seed << " row " << row << " value " << i;
        }
      }
    }
    seen.insert(block.begin(), block.begin() + 64);
  }
  EXPECT_EQ(seen.size(), 256u);
}

TEST(RowKernels, DecodersEqualTheScalarCodecs) {
  for (const cpu::IsaLevel level : available_levels()) {
    SCOPED_TRACE(cpu::isa_level_name(level));
    const cpu::RowKernels& kernels = cpu::row_kernels(level);
    for (const RowFormat format : {RowFormat::kFp8DsMla, RowFormat::kFp8Row, RowFormat::kNvfp4, RowFormat::kBf16}) {
      SCOPED_TRACE(row_format_name(format));
      check_decoder(format, kHeadDim, format == RowFormat::kFp8Row, kernels.decode_row);
    }
    for (const IndexKeyFormat format :
         {IndexKeyFormat::kMxfp4, IndexKeyFormat::kNvfp4, IndexKeyFormat::kFp8, IndexKeyFormat::kBf16}) {
      SCOPED_TRACE(index_key_format_name(format));
      check_decoder(format, kIndexHeadDim, false, kernels.decode_key);
    }
  }
}

TEST(RowKernels, FusedLevelsGiveTheSameScores) {
  const auto levels = available_levels();
  const int heads = 48;
  const auto q = random_bf16(51, static_cast<std::size_t>(heads) * kHeadDim);
  const auto rows = random_floats(52, static_cast<std::size_t>(cpu::kTileRows) * cpu::kDecodedStride);
  std::vector<std::vector<float>> scores;
  for (const cpu::IsaLevel level : levels) {
    const cpu::RowKernels& kernels = cpu::row_kernels(level);
    std::vector<float> columns(static_cast<std::size_t>(heads) * kHeadDim);
    kernels.heads_to_lanes(q.data(), heads, kHeadDim, heads, columns.data());
    scores.emplace_back(static_cast<std::size_t>(heads * cpu::kTileRows));
    kernels.scores(columns.data(), heads, kHeadDim, rows.data(), cpu::kDecodedStride, cpu::kTileRows,
                   scores.back().data());
  }
  for (std::size_t level = 1; level < levels.size(); ++level) {
    if (level >= 2) {
      EXPECT_TRUE(same_bytes(scores[level], scores[1]));
    }
    for (std::size_t i = 0; i < scores[0].size(); ++i) ASSERT_NEAR(scores[level][i], scores[0][i], 1e-3f);
  }
}

// Groups of ties, zeros, tiny, huge and non-finite values, and random ones.
std::vector<float> awkward_key(std::uint64_t seed) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr std::array<float, 20> kSpecial = {
      0.0f,  -0.0f, 0.25f,  0.75f,   -1.25f, 1.75f, 2.5f,  -3.5f, 5.0f,     -6.0f,
      6.01f, 7.9f,  1e-40f, -1e-38f, 3e38f,  kInf,  -kInf, 1e-4f, 0.24999f, std::numeric_limits<float>::quiet_NaN()};
  Random random(seed);
  std::vector<float> values(kIndexHeadDim);
  const float scale = std::ldexp(1.0f, static_cast<int>(seed % 41) - 20);
  for (float& value : values) {
    value = seed % 3 == 0 ? kSpecial[random.bits() % (seed % 2 == 0 ? 14 : 20)] : random.normal() * scale;
  }
  return values;
}

TEST(RowKernels, HadamardAndMxfp4RoundingEqualTheScalarCode) {
  for (const cpu::IsaLevel level : available_levels()) {
    const cpu::RowKernels& kernels = cpu::row_kernels(level);
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
      auto expected = awkward_key(seed);
      auto actual = expected;
      round_through(IndexKeyFormat::kMxfp4, expected.data());
      kernels.round_mxfp4(actual.data());
      ASSERT_TRUE(same_bytes(actual, expected)) << "seed " << seed;

      auto transformed = random_floats(seed, kIndexHeadDim);
      actual = transformed;
      cpu::hadamard_transform(transformed.data());
      std::transform(transformed.begin(), transformed.end(), transformed.begin(), round_to_bf16);
      kernels.hadamard_bf16(actual.data());
      ASSERT_TRUE(same_bytes(actual, transformed)) << "seed " << seed;
    }
  }
}

TEST(RowKernels, HeadNormIsTheSameAtEveryLevel) {
  const auto levels = available_levels();
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto head = random_bf16(seed, kHeadDim, std::ldexp(1.0f, static_cast<int>(seed % 31) - 15));
    std::vector<bf16> expected = head;
    cpu::row_kernels(levels[0]).normalize_head(expected.data(), 1e-6f);
    for (const cpu::IsaLevel level : levels) {
      std::vector<bf16> actual = head;
      cpu::row_kernels(level).normalize_head(actual.data(), 1e-6f);
      ASSERT_TRUE(same_bytes(actual, expected)) << cpu::isa_level_name(level);
    }
  }
}

TEST(ExpLanes, AtMostTwoUlpFromTheTrueValue) {
  double worst = 0;
  for (float x = -87.0f; x <= 88.7f; x += 0.00071f) {
    const double truth = std::exp(static_cast<double>(x));
    const auto nearest = static_cast<float>(truth);
    const double ulp = static_cast<double>(std::nextafter(nearest, std::numeric_limits<float>::infinity())) -
                       static_cast<double>(nearest);
    worst = std::max(worst, std::abs(static_cast<double>(cpu::exp_scalar(x)) - truth) / ulp);
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(cpu::exp_scalar(0.0f), 1.0f);
  EXPECT_EQ(cpu::exp_scalar(-88.0f), 0.0f);
  EXPECT_EQ(cpu::exp_scalar(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(cpu::exp_scalar(89.0f), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(cpu::exp_scalar(std::numeric_limits<float>::quiet_NaN())));
}

// --- top-k --------------------------------------------------------------------------------------------------

// Sorts by the documented order: larger first, NaN last, lower index first.
std::vector<std::int32_t> sorted_choice(const std::vector<float>& scores, std::int32_t k) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
    if (x != y && !std::isnan(x)) return x > y;
    return a < b;
  });
  order.resize(static_cast<std::size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

void check_top_k(const std::vector<float>& scores, std::int32_t k) {
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(k) + 1, -99);
  cpu::top_k(scores, k, chosen.data());
  EXPECT_EQ(chosen.back(), -99) << "wrote past k";
  chosen.pop_back();
  EXPECT_EQ(chosen, sorted_choice(scores, k)) << scores.size() << " candidates, k " << k;
}

TEST(TopK, AllEqualTakesTheFirst) {
  for (const std::size_t n : {1u, 512u, 1000u, 4099u}) {
    check_top_k(std::vector<float>(n, 0.0f), static_cast<std::int32_t>(std::min<std::size_t>(n, 512)));
  }
}

TEST(TopK, ManyTiesAndOddSizes) {
  Random random(61);
  for (const std::size_t n : {513u, 767u, 2047u, 2048u, 2049u, 10007u}) {
    std::vector<float> scores(n);
    for (float& score : scores) score = static_cast<float>(random.bits() % 5) - 2.0f;
    for (const std::int32_t k : {1, 2, 511, 512}) check_top_k(scores, k);
  }
}

TEST(TopK, NanInfinityAndSignedZero) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> scores = {kNan, -kInf, -0.0f, 0.0f, kInf, -kNan, 1.0f, -1e-45f, 1e-45f, kNan, -3e38f, -0.0f};
  for (std::int32_t k = 1; k <= static_cast<std::int32_t>(scores.size()); ++k) check_top_k(scores, k);
  check_top_k(std::vector<float>(600, kNan), 512);
}

TEST(TopK, QuarterMillionCandidates) {
  const auto scores = random_floats(62, 260000);
  check_top_k(scores, 512);
  check_top_k(scores, 1024);
  check_top_k(scores, 260000);
}

}  // namespace
}  // namespace dsv4rt
