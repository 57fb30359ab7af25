// index_query and indexer_topk.
#include <algorithm>
#include <array>
#include <numeric>

#include <gtest/gtest.h>

#include "layout/rounding.h"
#include "unit/backend/compressor_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

constexpr std::array kKeyFormats = {IndexKeyFormat::kMxfp4, IndexKeyFormat::kNvfp4, IndexKeyFormat::kFp8,
                                    IndexKeyFormat::kBf16};

TEST(IndexQuery, MatchesReferenceWithAndWithoutHadamardAndRope) {
  const TestStep step({{0, 9, 2}, {1, 4000, 1}}, 1);
  const std::int32_t heads = 3;
  const auto q = random_bf16(71, static_cast<std::size_t>(step.tokens() * heads * kIndexHeadDim));
  const auto frequencies = test_frequencies(160000.0);
  for (const bool hadamard : {false, true}) {
    for (const bool rope : {false, true}) {
      std::vector<bf16> exact = q;
      TestOps ops;
      IndexQueryParams params{step.view(),  heads,
                              exact.data(), {rope ? frequencies.data() : nullptr, false},
                              hadamard,     IndexKeyFormat::kBf16};
      ASSERT_TRUE(ops->index_query(params).ok());
      for (int row = 0; row < 3 * heads; ++row) {
        std::vector<double> expected;
        for (std::size_t i = 0; i < kIndexHeadDim; ++i) {
          expected.push_back(static_cast<double>(to_float(q[static_cast<std::size_t>(row) * kIndexHeadDim + i])));
        }
        if (rope) reference_rope(expected, frequencies, step.view().token_position[row / heads]);
        if (hadamard) expected = CompressorSetup::reference_hadamard(expected);
        for (std::size_t i = 0; i < kIndexHeadDim; ++i) {
          EXPECT_NEAR(static_cast<double>(to_float(exact[static_cast<std::size_t>(row) * kIndexHeadDim + i])),
                      expected[i], std::abs(expected[i]) * 0x1p-7 + 2e-3);
        }
      }
      for (const IndexKeyFormat format : kKeyFormats) {
        std::vector<bf16> rounded = q;
        params.q = rounded.data();
        params.key_format = format;
        ASSERT_TRUE(ops->index_query(params).ok());
        for (std::size_t row = 0; row < static_cast<std::size_t>(3 * heads); ++row) {
          std::array<float, kIndexHeadDim> values;
          for (std::size_t i = 0; i < kIndexHeadDim; ++i) values[i] = to_float(exact[row * kIndexHeadDim + i]);
          round_through(format, values.data());
          for (std::size_t i = 0; i < kIndexHeadDim; ++i) {
            ASSERT_EQ(to_float(rounded[row * kIndexHeadDim + i]), values[i]) << index_key_format_name(format);
          }
        }
      }
    }
  }
}

// Index keys of two slots in scattered blocks, and queries over them.
class SelectSetup {
 public:
  static constexpr std::int32_t kRatio = 4;

  SelectSetup(std::int32_t rows, std::int32_t heads, IndexKeyFormat format, std::int32_t block_rows = 64)
      : heads(heads), format(format), shape(block_shape(format, block_rows)), stride(rows / block_rows + 1) {
    for (std::int64_t i = 0; i < 2 * stride; ++i)
      table.push_back(static_cast<std::int32_t>((i * 5 + 3) % (2 * stride + 1)));
    // 5 and the number of blocks must be coprime for distinct blocks.
    if ((2 * stride + 1) % 5 == 0) std::iota(table.begin(), table.end(), 0);
    blocks = poisoned(static_cast<std::size_t>((2 * stride + 1) * shape.block_bytes), 80);
    for (int slot = 0; slot < 2; ++slot) {
      const auto keys =
          random_floats(81 + static_cast<std::uint64_t>(slot), static_cast<std::size_t>(rows) * kIndexHeadDim);
      for (std::int32_t row = 0; row < rows; ++row) set_key(slot, row, keys.data() + std::int64_t{row} * kIndexHeadDim);
    }
  }

  std::byte* block_of(int slot, std::int32_t row) {
    return blocks.data() + table[static_cast<std::size_t>(slot * stride + row / shape.rows)] * shape.block_bytes;
  }
  void set_key(int slot, std::int32_t row, const float* values) {
    std::array<float, kIndexHeadDim> rounded;
    for (std::size_t i = 0; i < kIndexHeadDim; ++i) rounded[i] = round_to_bf16(values[i]);
    encode_row(format, shape, rounded.data(), block_of(slot, row), row % shape.rows);
  }

  // Selection of every token of the step, [T, top_k] then counts.
  std::vector<std::int32_t> select(const TestStep& step, const std::vector<bf16>& q, const std::vector<bf16>& weight,
                                   std::int32_t top_k, int threads, cpu::IsaLevel isa = cpu::detect_isa_level()) {
    TestOps ops(threads, isa);
    const auto tokens = static_cast<std::size_t>(step.tokens());
    std::vector<std::int32_t> out(tokens * static_cast<std::size_t>(top_k + 1), -5);
    const Status status = ops->indexer_topk({.step = step.view(),
                                             .heads = heads,
                                             .ratio = kRatio,
                                             .top_k = top_k,
                                             .q = q.data(),
                                             .head_weight = weight.data(),
                                             .head_weight_stride = heads + 3,
                                             .head_scale = 0.03f,
                                             .key_format = format,
                                             .keys = {blocks.data(), shape, table.data(), stride},
                                             .topk_indices = out.data(),
                                             .topk_count = out.data() + tokens * static_cast<std::size_t>(top_k)});
    EXPECT_TRUE(status.ok()) << status.to_string();
    return out;
  }

  double score(int slot, std::int32_t row, const bf16* q, const bf16* weight) {
    std::array<float, kIndexHeadDim> key;
    decode_row(format, shape, block_of(slot, row), row % shape.rows, key.data());
    return reference_index_score(key, heads, q, weight, 0.03f);
  }

  std::int32_t heads;
  IndexKeyFormat format;
  BlockShape shape;
  std::int64_t stride;
  std::vector<std::int32_t> table;
  std::vector<std::byte> blocks;
};

TEST(IndexerTopk, TakesTheBestByDoubleReference) {
  for (const IndexKeyFormat format : kKeyFormats) {
    for (const std::int32_t heads : {4, 16, 23, 64}) {
      SelectSetup setup(500, heads, format);
      const TestStep step({{0, 1900, 2}, {1, 700, 1}, {0, 30, 1}}, 1);
      const std::int32_t top_k = 32;
      const auto q = random_bf16(82, static_cast<std::size_t>(step.tokens() * heads * kIndexHeadDim));
      const auto weight = random_bf16(83, static_cast<std::size_t>(step.tokens() * (heads + 3)));
      for (const cpu::IsaLevel level : available_levels()) {
        const auto out = setup.select(step, q, weight, top_k, 2, level);
        for (int t = 0; t < 4; ++t) {
          const std::int32_t slot = t == 2 ? 1 : 0;
          const std::int32_t visible = (step.view().token_position[t] + 1) / 4;
          const std::int32_t count = std::min(visible, top_k);
          ASSERT_EQ(out[static_cast<std::size_t>(step.tokens() * top_k + t)], count);
          std::vector<double> scores;
          for (std::int32_t row = 0; row < visible; ++row) {
            scores.push_back(
                setup.score(slot, row, q.data() + t * heads * kIndexHeadDim, weight.data() + t * (heads + 3)));
          }
          auto sorted = scores;
          std::sort(sorted.rbegin(), sorted.rend());
          const double last = sorted[static_cast<std::size_t>(count - 1)];
          std::int32_t previous = -1;
          for (std::int32_t i = 0; i < top_k; ++i) {
            const std::int32_t row = out[static_cast<std::size_t>(t * top_k + i)];
            if (i >= count) {
              EXPECT_EQ(row, -1);
              continue;
            }
            ASSERT_GT(row, previous) << "ascending";
            ASSERT_LT(row, visible);
            EXPECT_GE(scores[static_cast<std::size_t>(row)], last - 1e-4) << "FP32 noise at most";
            previous = row;
          }
        }
        EXPECT_EQ(out[static_cast<std::size_t>(step.tokens() * top_k + 4)], 0) << "padding selects nothing";
      }
    }
  }
}

// Lesson 10: ties, NaN rows, fewer rows than k, a quarter million candidates.
TEST(IndexerTopk, EqualScoresTakeTheLowestRowsAcrossTiles) {
  SelectSetup setup(1000, 8, IndexKeyFormat::kMxfp4);
  const std::vector<float> same(kIndexHeadDim, 1.0f);
  for (std::int32_t row = 0; row < 1000; ++row) setup.set_key(0, row, same.data());
  const TestStep step({{0, 3996, 1}});
  const auto weight = random_bf16(84, 11);
  const auto out = setup.select(step, std::vector<bf16>(8 * kIndexHeadDim, to_bf16(1.0f)), weight, 512, 3);
  for (std::int32_t i = 0; i < 512; ++i) ASSERT_EQ(out[static_cast<std::size_t>(i)], i);
}

TEST(IndexerTopk, NanKeysComeLast) {
  SelectSetup setup(40, 5, IndexKeyFormat::kBf16);
  const std::vector<float> nan(kIndexHeadDim, std::nanf(""));
  for (const std::int32_t row : {0, 7, 39}) setup.set_key(0, row, nan.data());
  const TestStep step({{0, 159, 1}});
  const auto out = setup.select(step, random_bf16(85, 5 * kIndexHeadDim), random_bf16(86, 8), 37, 2);
  std::vector<std::int32_t> expected;
  for (std::int32_t row = 0; row < 40; ++row) {
    if (row != 0 && row != 7 && row != 39) expected.push_back(row);
  }
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.begin()));
}

TEST(IndexerTopk, BelowKSelectsAllWithoutReadingKeys) {
  SelectSetup setup(16, 4, IndexKeyFormat::kMxfp4);
  std::fill(setup.table.begin(), setup.table.end(), 1 << 28);  // a read would be far outside
  const TestStep step({{0, 0, 12}});
  const auto out = setup.select(step, random_bf16(87, 12 * 4 * kIndexHeadDim), random_bf16(88, 12 * 7), 3, 2);
  for (int t = 0; t < 12; ++t) {
    const std::int32_t count = (t + 1) / 4;
    EXPECT_EQ(out[static_cast<std::size_t>(12 * 3 + t)], count);
    for (std::int32_t i = 0; i < 3; ++i) EXPECT_EQ(out[static_cast<std::size_t>(t * 3 + i)], i < count ? i : -1);
  }
}

TEST(IndexerTopk, ThreadsAndBatchDoNotMatter) {
  SelectSetup setup(2000, 16, IndexKeyFormat::kMxfp4);
  const TestStep step({{0, 7900, 5}, {1, 3000, 3}}, 1);
  const auto q = random_bf16(89, static_cast<std::size_t>(step.tokens()) * 16 * kIndexHeadDim);
  const auto weight = random_bf16(90, static_cast<std::size_t>(step.tokens()) * 19);
  const auto expected = setup.select(step, q, weight, 100, 1);
  for (const int threads : {2, 3, 5}) EXPECT_EQ(setup.select(step, q, weight, 100, threads), expected);
  const TestStep alone({{1, 3001, 1}});
  const std::vector<bf16> q6(q.begin() + 6 * 16 * kIndexHeadDim, q.begin() + 7 * 16 * kIndexHeadDim);
  const std::vector<bf16> weight6(weight.begin() + 6 * 19, weight.begin() + 7 * 19);
  const auto single = setup.select(alone, q6, weight6, 100, 3);
  EXPECT_TRUE(std::equal(single.begin(), single.begin() + 100, expected.begin() + 600));
}

TEST(IndexerTopk, QuarterMillionRows) {
  const std::int32_t rows = 260000;
  SelectSetup setup(rows, 2, IndexKeyFormat::kMxfp4);
  const TestStep step({{1, rows * 4 - 1, 1}});
  const auto q = random_bf16(91, 2 * kIndexHeadDim);
  const auto weight = std::vector<bf16>(5, to_bf16(1.0f));
  const auto out = setup.select(step, q, weight, 512, 2);
  std::vector<double> scores;
  for (std::int32_t row = 0; row < rows; ++row) scores.push_back(setup.score(1, row, q.data(), weight.data()));
  auto sorted = scores;
  std::nth_element(sorted.begin(), sorted.begin() + 511, sorted.end(), std::greater<>());
  for (std::size_t i = 0; i < 512; ++i) {
    ASSERT_GE(scores[static_cast<std::size_t>(out[i])], sorted[511] - 1e-4);
    if (i > 0) {
      ASSERT_GT(out[i], out[i - 1]);
    }
  }
}

}  // namespace
}  // namespace dsv4rt
