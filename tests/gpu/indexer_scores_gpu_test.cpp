// Scores of MXFP4 keys on the GPU, which integers, FP16 and, where a key's scales lie far apart, FP32 give. Integers
// give the bits of FP16; which of the three serves depends on the query, its weights and the key, and no score's bits
// depend on the tokens beside its own.
#include <cstring>
#include <cuda_runtime_api.h>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/indexer_topk/params.h"
#include "backend/cuda/kernels/indexer_topk/stages.h"
#include "base/arithmetic.h"
#include "gpu/support/indexer_topk_calls.h"
#include "layout/codec_e8m0.h"
#include "layout/codec_mxfp4.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

constexpr IndexKeyFormat kFormat = IndexKeyFormat::kMxfp4;
constexpr int kGroups = kIndexHeadDim / kMxfp4GroupValues;

class IndexerScoresGpuTest : public IndexerTopkGpuTest {
 protected:
  // [T][rows], of which those that a token sees count.
  struct Scores {
    std::int64_t stride = 0;
    std::vector<float> values;
    [[nodiscard]] float at(std::int32_t token, std::int32_t row) const {
      return values[static_cast<std::size_t>(token * stride + row)];
    }
  };

  static Scores scores_of(const TestStep& step, const Call& call, const Keys& keys) {
    static const auto device = cuda::CudaDevice::create(0);
    EXPECT_OK(device);
    OnGpu on_gpu(step, call, keys);
    const StepView view = step.view();
    const std::int32_t rows = view.counts.context_end / kRatio;
    Scores scores;
    scores.stride = round_up<std::int64_t>(rows, cuda::kKeyTileRows);
    DeviceArray<float> memory(
        gpu(), std::vector<float>(static_cast<std::size_t>(step.tokens() * scores.stride), std::nanf("")));
    EXPECT_OK(gpu().synchronize());
    cuda::ScoreBatch batch;
    batch.tokens = step.tokens();
    batch.group_tokens = std::clamp(view.counts.longest_entry, 1, 8);
    batch.most_rows = rows;
    batch.stride = scores.stride;
    batch.scores = memory.data();
    EXPECT_OK(cuda::launch_wgmma_scores(**device, on_gpu.params(), batch, nullptr));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    scores.values = memory.download();
    return scores;
  }

  // A call whose queries are as the engine makes them.
  static Call rounded_call(const TestStep& step, std::int32_t heads, std::uint64_t seed) {
    return random_call(step, heads, 1, seed, kFormat);
  }
  // Gives a token a last head that integers cannot hold, and so FP16 products.
  static void give_fp16(Call& call, std::int32_t token) {
    bf16* const head = call.q.data() + std::int64_t{token + 1} * call.heads * kIndexHeadDim - kIndexHeadDim;
    for (int i = 0; i < kIndexHeadDim; ++i) head[i] = to_bf16(1.0F + static_cast<float>(i) * 0x1p-7F);
  }

  // The powers of two between the scales of a key.
  static int spread(Keys& keys, std::int32_t row) {
    const auto* const scales =
        reinterpret_cast<const std::uint8_t*>(keys.block_of(0, row) + keys.shape.scale_offset(row % keys.shape.rows));
    const auto [least, most] = std::minmax_element(scales, scales + kGroups);
    return *most - *least;
  }
  // Keys whose scales are 0 to 5 powers of two apart, and some with groups of zeros.
  static Keys keys_of_every_spread(std::int32_t rows) {
    Keys keys(1, rows, kFormat);
    Random random(85);
    std::array<float, kIndexHeadDim> key;
    for (std::int32_t row = 0; row < rows; ++row) {
      for (std::size_t i = 0; i < key.size(); ++i) {
        const int group = static_cast<int>(i) / kMxfp4GroupValues;
        const int down = group == row % kGroups ? row / kGroups % 6 : 0;
        key[i] = std::ldexp(static_cast<float>(static_cast<int>(random.bits() % 13) - 6), row % 40 - 20 - down);
        if (i % kMxfp4GroupValues == 3) key[i] = std::ldexp(6.0F, row % 40 - 20 - down);
        if (row % 97 == 5 && group == 1) key[i] = 0.0F;
      }
      keys.set(0, row, key.data());
    }
    return keys;
  }

  static bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(float)) == 0; }

  // Token `t` of a step whose first token has this position, alone, has the scores that it has `together`.
  static void expect_same_alone(std::int32_t first_position, std::int32_t t, const Call& call, const Keys& keys,
                                const Scores& together) {
    const std::int32_t heads = call.heads;
    const TestStep alone({{0, first_position + t, 1}});
    const auto q = call.q.begin() + std::int64_t{t} * heads * kIndexHeadDim;
    const auto weight = call.weight.begin() + std::int64_t{t} * (heads + 3);
    const Call own{heads, 1, {q, q + std::int64_t{heads} * kIndexHeadDim}, {weight, weight + heads + 3}};
    const Scores scores = scores_of(alone, own, keys);
    for (std::int32_t row = 0; row < (first_position + t + 1) / kRatio; ++row) {
      ASSERT_TRUE(same_bits(scores.at(0, row), together.at(t, row)))
          << "token " << t << ", row " << row << ", " << heads << " heads: " << scores.at(0, row) << ", "
          << together.at(t, row);
    }
  }
};

// A head whose weight is zero adds nothing, but takes the token to the kernel's products of FP16.
TEST_F(IndexerScoresGpuTest, IntegersGiveTheBitsOfFp16) {
  constexpr std::int32_t kRows = 1500;
  Keys keys = keys_of_every_spread(kRows);
  for (const std::int32_t heads : {1, 23, 63, 64, 127}) {
    for (const std::int32_t tokens : {1, 5}) {
      SCOPED_TRACE(std::to_string(heads) + " heads, " + std::to_string(tokens) + " tokens");
      const TestStep step({{0, kRows * kRatio - tokens, tokens}});
      const Call call = rounded_call(step, heads, 1000 + static_cast<std::uint64_t>(heads));
      Call other{heads + 1, 1, {}, {}};
      for (std::int32_t t = 0; t < tokens; ++t) {
        const auto q = call.q.begin() + std::int64_t{t} * heads * kIndexHeadDim;
        other.q.insert(other.q.end(), q, q + std::int64_t{heads} * kIndexHeadDim);
        other.q.resize(other.q.size() + kIndexHeadDim);
        const auto weight = call.weight.begin() + std::int64_t{t} * (heads + 3);
        other.weight.insert(other.weight.end(), weight, weight + heads);
        other.weight.resize(other.weight.size() + 4);  // zeros
        give_fp16(other, t);
      }
      const Scores integers = scores_of(step, call, keys);
      const Scores fp16 = scores_of(step, other, keys);
      std::int32_t even = 0;
      for (std::int32_t t = 0; t < tokens; ++t) {
        for (std::int32_t row = 0; row < (kRows * kRatio - tokens + t + 1) / kRatio; ++row) {
          if (spread(keys, row) > 2) continue;
          ++even;
          ASSERT_TRUE(same_bits(integers.at(t, row), fp16.at(t, row)))
              << "token " << t << ", row " << row << ": " << integers.at(t, row) << ", " << fp16.at(t, row);
        }
      }
      EXPECT_GT(even, tokens * kRows / 3);
    }
  }
}

TEST_F(IndexerScoresGpuTest, AgreesWithDoublePrecision) {
  constexpr std::int32_t kRows = 1500;
  Keys keys = keys_of_every_spread(kRows);
  std::array<int, 2> rows_of{};  // even, uneven
  for (const std::int32_t heads : {1, 23, 64, 65}) {
    for (const bool fp16 : {false, true}) {
      const TestStep step({{0, kRows * kRatio - 1, 1}});
      Call call = rounded_call(step, heads, 1100 + static_cast<std::uint64_t>(heads));
      if (fp16) give_fp16(call, 0);
      for (bf16& weight : call.weight) weight = to_bf16(std::abs(to_float(weight)));  // no cancellation
      const Scores scores = scores_of(step, call, keys);
      for (std::int32_t row = 0; row < kRows; ++row) {
        const double expected = keys.score(0, row, heads, call.q.data(), call.weight.data());
        ASSERT_NEAR(scores.at(0, row), expected, 2e-6 * std::abs(expected) + 1e-9 * std::ldexp(1.0, row % 40 - 20))
            << "row " << row << ", " << heads << " heads";
        ++rows_of[spread(keys, row) > 2 ? 1 : 0];
      }
    }
  }
  EXPECT_GT(rows_of[0], 1000);
  EXPECT_GT(rows_of[1], 1000);
}

// One head of two values, one of them the greatest and the other at the border of what is an integer beside it; with
// exponents up to where integers end and beyond.
TEST_F(IndexerScoresGpuTest, HeadsAtTheBordersOfIntegers) {
  constexpr std::int32_t kRows = 700;
  Keys keys = keys_of_every_spread(kRows);
  const TestStep step({{0, kRows * kRatio - 1, 1}});
  for (const int exponent : {-41, -40, 0, 33, 34}) {
    // Held, and not: an integer is at most 127, and has two bits.
    for (const float value : {0x1p-6F, 0x1.8p-5F, 0x1.8p0F, 0x1.8p-6F, 0x1p-7F, 0x1.cp-3F}) {
      for (const std::size_t dim : {std::size_t{1}, std::size_t{17}, std::size_t{127}}) {
        Call call = rounded_call(step, 1, 1150);
        std::fill(call.q.begin(), call.q.end(), to_bf16(0.0F));
        call.q[0] = to_bf16(std::ldexp(1.0F, exponent));
        call.q[dim] = to_bf16(std::ldexp(value, exponent));
        call.weight[0] = to_bf16(1.0F);
        const Scores scores = scores_of(step, call, keys);
        for (std::int32_t row = 0; row < kRows; ++row) {
          const double expected = keys.score(0, row, 1, call.q.data(), call.weight.data());
          ASSERT_NEAR(scores.at(0, row), expected, 1e-6 * std::abs(expected))
              << "row " << row << ", " << value << " times 2^" << exponent << " at " << dim;
        }
      }
    }
  }
}

// Runs of tokens of which all, some or none are for integers, and every token alone.
TEST_F(IndexerScoresGpuTest, TokensBesideOneChangeNoBits) {
  constexpr std::int32_t kRows = 643;  // some tokens see one tile of keys more
  constexpr std::int32_t kTokens = 24;
  constexpr std::int32_t kFirst = kRows * kRatio - kTokens;
  Keys keys = keys_of_every_spread(kRows);
  for (const std::int32_t heads : {16, 64, 65}) {
    const TestStep step({{0, kFirst, kTokens}});
    Call call = rounded_call(step, heads, 1200 + static_cast<std::uint64_t>(heads));
    for (const std::int32_t token : {9, 12, 16, 17, 18, 19, 20, 21, 22, 23}) give_fp16(call, token);
    const Scores together = scores_of(step, call, keys);
    for (std::int32_t t = 0; t < kTokens; ++t) expect_same_alone(kFirst, t, call, keys, together);
  }
}

// Blocks that take several runs, of which some are for integers and some are not, in any order.
TEST_F(IndexerScoresGpuTest, RunsOfABlockChangeNoBits) {
  constexpr std::int32_t kRows = 643;
  constexpr std::int32_t kTokens = 2400;
  constexpr std::int32_t kFirst = kRows * kRatio - kTokens;
  Keys keys = keys_of_every_spread(kRows);
  for (const std::int32_t heads : {64, 65}) {
    const TestStep step({{0, kFirst, kTokens}});
    Call call = rounded_call(step, heads, 1250);
    Random random(86);
    for (std::int32_t t = 0; t < kTokens; ++t) {
      const bool all = t >= 1200 && t < 1300;
      const bool none = t < 400;
      if (all || (!none && random.bits() % 16 == 0)) give_fp16(call, t);
    }
    const Scores together = scores_of(step, call, keys);
    for (std::int32_t t = 3; t < kTokens; t += 23) expect_same_alone(kFirst, t, call, keys, together);
  }
}

// Rows that are scored again are counted again: few rows in one kernel, more counted, more yet with many blocks.
TEST_F(IndexerScoresGpuTest, UnevenRowsAreSelectedAsTheCpuDoes) {
  for (const std::int32_t rows : {700, 2500, 6000, 70000}) {
    Keys keys = keys_of_every_spread(rows);
    for (const bool fp16_query : {false, true}) {
      SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(fp16_query));
      const TestStep step({{0, rows * kRatio - 1, 1}, {0, rows * kRatio - 200, 1}});
      Call call = random_call(step, 64, 512, 1300, kFormat);
      if (fp16_query) give_fp16(call, 0);
      check(step, call, keys);
      // By two kernels.
      const TestStep prompt({{0, rows * kRatio - 11, 11}});
      Call run = random_call(prompt, 64, 512, 1301, kFormat);
      if (fp16_query) give_fp16(run, 3);
      check(prompt, run, keys);
    }
  }
}

// So few launches that tools can follow every access: runs with a token that is not for integers and without one, and
// tokens alone whose rows are counted.
TEST_F(IndexerScoresGpuTest, FewUnevenRuns) {
  Keys keys = keys_of_every_spread(300);
  const TestStep runs({{0, 1190, 5}, {0, 900, 3}}, 1);
  Call call = random_call(runs, 16, 40, 1350, kFormat);
  give_fp16(call, 2);
  check(runs, call, keys);
  constexpr std::int32_t kRows = cuda::kMostFewRows + 40;
  Keys more_keys = keys_of_every_spread(kRows);
  const TestStep counted({{0, kRows * kRatio - 1, 1}, {0, kRows * kRatio - 300, 1}});
  Call more = random_call(counted, 16, 40, 1352, kFormat);
  give_fp16(more, 1);
  check(counted, more, more_keys);
}

// The same of the kernel that scores and selects, whose blocks form clusters.
TEST_F(IndexerScoresGpuTest, FewUnevenOnes) {
  Keys keys = keys_of_every_spread(300);
  const TestStep alone({{0, 1199, 1}, {0, 1001, 1}});
  Call few = random_call(alone, 16, 40, 1351, kFormat);
  give_fp16(few, 1);
  check(alone, few, keys);
}

// Scales without a number, in one group of a key or in all, and keys of zeros.
TEST_F(IndexerScoresGpuTest, ScalesWithoutANumber) {
  constexpr std::int32_t kRows = 900;
  Keys keys = keys_of_every_spread(kRows);
  const auto scales = [&](std::int32_t row) {
    return reinterpret_cast<std::uint8_t*>(keys.block_of(0, row) + keys.shape.scale_offset(row % keys.shape.rows));
  };
  const std::array<float, kIndexHeadDim> zeros{};
  for (const std::int32_t row : {3, 64, 300}) scales(row)[row % kGroups] = kE8m0NanCode;
  for (const std::int32_t row : {7, 127, 640}) std::fill_n(scales(row), kGroups, kE8m0NanCode);
  for (const std::int32_t row : {0, 65, 899}) keys.set(0, row, zeros.data());
  const TestStep step({{0, kRows * kRatio - 1, 1}});
  const Scores scores = scores_of(step, rounded_call(step, 64, 1400), keys);
  for (std::int32_t row = 0; row < kRows; ++row) {
    const bool without = std::count(scales(row), scales(row) + kGroups, kE8m0NanCode) > 0;
    ASSERT_EQ(std::isnan(scores.at(0, row)), without) << row;
  }
  for (const std::int32_t row : {0, 65, 899}) EXPECT_EQ(scores.at(0, row), 0.0F);
  check(step, random_call(step, 64, 893, 1401, kFormat), keys);
}

// Weights at and beyond the ends of what integers serve, infinities and NaN among them.
TEST_F(IndexerScoresGpuTest, WeightsOfEverySize) {
  constexpr std::int32_t kRows = 600;
  Keys keys = keys_of_every_spread(kRows);
  const TestStep step({{0, kRows * kRatio - 1, 1}});
  for (const int power : {-120, -82, -80, -78, -76, -74, -40, 0, 20, 24, 26, 28, 30, 60}) {
    Call call = rounded_call(step, 1, 1500);
    call.weight[0] = to_bf16(std::ldexp(1.0F, power));
    const Scores scores = scores_of(step, call, keys);
    for (std::int32_t row = 0; row < kRows; ++row) {
      const double expected = keys.score(0, row, 1, call.q.data(), call.weight.data());
      // Exact but for products of numbers that are not normal: FP16 serves tokens with such weights.
      const bool exact = spread(keys, row) <= 2 && power > -90;
      const double off = exact ? 0.0 : 1e-6 * std::abs(expected) + 0x1p-126 * std::ldexp(1.0, row % 40 - 20);
      ASSERT_NEAR(scores.at(0, row), static_cast<double>(static_cast<float>(expected)), off)
          << "row " << row << ", weight 2^" << power;
    }
  }
  for (const float weight : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Call call = rounded_call(step, 2, 1501);
    call.weight[1] = to_bf16(weight);
    const Scores scores = scores_of(step, call, keys);
    for (std::int32_t row = 0; row < kRows; ++row) ASSERT_FALSE(std::isfinite(scores.at(0, row))) << row;
  }
}

}  // namespace
}  // namespace dsv4rt
