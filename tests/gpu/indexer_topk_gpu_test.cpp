// indexer_topk on the GPU against the CPU's: formats, lengths, ties and the ends of the order.
#include "gpu/support/indexer_topk_calls.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

TEST_F(IndexerTopkGpuTest, AgreesWithTheCpuForEveryFormatAndHeadCount) {
  for (const IndexKeyFormat format : kKeyFormats) {
    Keys keys(2, 1333, format);
    keys.fill_random(2, 1333);
    for (const std::int32_t heads : {1, 8, 23, 64, 65, 128}) {
      SCOPED_TRACE(std::string(index_key_format_name(format)) + ", heads " + std::to_string(heads));
      const TestStep step({{0, 5290, 3}, {1, 2047, 1}, {0, 30, 1}}, 1);
      const std::uint64_t seed = 900 + static_cast<std::uint64_t>(heads);
      check(step, random_call(step, heads, 96, seed, format), keys);
      check(step, random_call(step, heads, 96, seed), keys);  // queries that the format cannot hold
    }
  }
}

TEST_F(IndexerTopkGpuTest, LengthsAroundKAndTiles) {
  constexpr std::int32_t kTopK = 64;
  for (const IndexKeyFormat format : kKeyFormats) {
    Keys keys(1, 700, format);
    keys.fill_random(1, 700);
    for (const std::int32_t rows : {1, 63, 64, 65, 66, 127, 128, 129, 191, 255, 256, 257, 511, 513, 640, 699}) {
      SCOPED_TRACE(std::string(index_key_format_name(format)) + ", rows " + std::to_string(rows));
      for (const std::int32_t beyond : {0, 3}) {  // no further row up to position 4 rows + 2
        const TestStep step({{0, rows * kRatio - 1 + beyond, 1}});
        check(step, random_call(step, 16, kTopK, 910, format), keys);
      }
    }
  }
}

TEST_F(IndexerTopkGpuTest, FewerRowsThanKReadNoKeys) {
  Keys keys(1, 16, IndexKeyFormat::kMxfp4);
  std::fill(keys.table.begin(), keys.table.end(), 1 << 28);  // a read would be far outside
  const TestStep step({{0, 0, 12}}, 2);
  const Call call = random_call(step, 4, 3, 920);
  const Selection out = select_on_gpu(step, call, keys);
  for (int t = 0; t < 14; ++t) {
    const std::int32_t count = t < 12 ? (t + 1) / kRatio : 0;
    EXPECT_EQ(out.count[static_cast<std::size_t>(t)], count);
    for (std::int32_t i = 0; i < 3; ++i) EXPECT_EQ(out.rows[static_cast<std::size_t>(t * 3 + i)], i < count ? i : -1);
  }
}

TEST_F(IndexerTopkGpuTest, EqualScoresTakeTheLowestRows) {
  constexpr std::int32_t kRows = 9000;
  for (const IndexKeyFormat format : kKeyFormats) {
    Keys keys(1, kRows, format);
    const std::vector<float> same(kIndexHeadDim, 1.0f);
    for (std::int32_t row = 0; row < kRows; ++row) keys.set(0, row, same.data());
    const TestStep step({{0, kRows * kRatio - 1, 1}});
    for (const float sign : {1.0f, -1.0f}) {  // positive scores, then zeros
      Call call = random_call(step, 8, 512, 930);
      std::fill(call.q.begin(), call.q.end(), to_bf16(sign));
      const Selection out = select_on_gpu(step, call, keys);
      for (std::int32_t i = 0; i < 512; ++i) ASSERT_EQ(out.rows[static_cast<std::size_t>(i)], i);
    }
  }
}

// As many keys as blocks have tiles and one more or fewer: some blocks, all of them once and twice.
TEST_F(IndexerTopkGpuTest, LengthsAroundShares) {
  constexpr std::int32_t kRows = 17000;
  for (const IndexKeyFormat format : {IndexKeyFormat::kMxfp4, IndexKeyFormat::kFp8}) {
    Keys keys(1, kRows, format);
    keys.fill_random(1, kRows);
    for (const std::int32_t tiles : {41, 131, 132, 133, 264}) {
      for (const std::int32_t rows : {tiles * 64 - 1, tiles * 64, tiles * 64 + 1}) {
        SCOPED_TRACE(std::string(index_key_format_name(format)) + ", rows " + std::to_string(rows));
        const TestStep step({{0, rows * kRatio - 1, 1}});
        check(step, random_call(step, 16, 512, 912, format), keys);
      }
    }
  }
}

// Scores of nine values only: the k-th is tied with hundreds of others, in every block of a cluster.
TEST_F(IndexerTopkGpuTest, ManyTiesAtTheLimit) {
  for (const std::int32_t rows : {700, 5000, 33000, 70001, 200000}) {
    Keys keys(1, rows, IndexKeyFormat::kMxfp4);
    Random random(940);
    std::array<float, kIndexHeadDim> key;
    for (std::int32_t row = 0; row < rows; ++row) {
      key.fill(static_cast<float>(random.bits() % 9));
      keys.set(0, row, key.data());
    }
    const TestStep step({{0, rows * kRatio - 1, 1}});
    Call call = random_call(step, 8, 512, 941);
    std::fill(call.q.begin(), call.q.end(), to_bf16(0.5f));
    std::fill(call.weight.begin(), call.weight.end(), to_bf16(1.0f));
    EXPECT_EQ(select_on_gpu(step, call, keys), select_on_cpu(step, call, keys)) << rows;
  }
}

TEST_F(IndexerTopkGpuTest, NanRowsComeLastAndInfinitiesFirst) {
  constexpr std::int32_t kRows = 600;
  for (const IndexKeyFormat format : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8}) {
    Keys keys(1, kRows, format);
    keys.fill_random(1, kRows, 950);
    const std::vector<float> nan(kIndexHeadDim, std::nanf(""));
    std::vector<float> large(kIndexHeadDim, 1.0f);
    for (const std::int32_t row : {0, 63, 64, 300, 599}) keys.set(0, row, nan.data());
    large[5] = std::numeric_limits<float>::infinity();  // FP8 saturates it
    for (const std::int32_t row : {7, 130}) keys.set(0, row, large.data());
    const TestStep step({{0, kRows * kRatio - 1, 1}});
    for (const std::int32_t heads : {5, 64}) {
      for (const std::int32_t top_k : {40, 594, 595, 596, 599}) {
        Call call = random_call(step, heads, top_k, 951);
        for (bf16& value : call.q) value = to_bf16(std::abs(to_float(value)));
        for (bf16& value : call.weight) value = to_bf16(std::abs(to_float(value)));
        SCOPED_TRACE(std::string(index_key_format_name(format)) + ", top " + std::to_string(top_k));
        check(step, call, keys);
      }
    }
  }
}

// Keys without a number of a score, and a few with one; all scores are at the ends of the order.
TEST_F(IndexerTopkGpuTest, NanEverywhere) {
  constexpr std::int32_t kRows = 4000;
  Keys keys(1, kRows, IndexKeyFormat::kBf16);
  const std::vector<float> nan(kIndexHeadDim, std::nanf(""));
  for (std::int32_t row = 0; row < kRows; ++row) keys.set(0, row, nan.data());
  std::vector<float> large(kIndexHeadDim, 1.0F);
  const TestStep step({{0, kRows * kRatio - 1, 1}});
  for (const float infinity : {0.0F, std::numeric_limits<float>::infinity()}) {
    large[5] = infinity;  // some scores are numbers, or infinite
    for (const std::int32_t row : {7, 2000, 3999}) {
      if (infinity > 0.0F) keys.set(0, row, large.data());
    }
    for (const float weight : {1.0F, -1.0F}) {
      for (const std::int32_t top_k : {2, 3, 4, 512, 3999}) {
        Call call = random_call(step, 8, top_k, 955);
        std::fill(call.q.begin(), call.q.end(), to_bf16(1.0F));
        std::fill(call.weight.begin(), call.weight.end(), to_bf16(weight));
        EXPECT_EQ(select_on_gpu(step, call, keys), select_on_cpu(step, call, keys)) << top_k << " " << weight;
      }
    }
  }
}

// Groups of a key far below the key's largest, codes at the ends of their ranges.
TEST_F(IndexerTopkGpuTest, WideRangesOfScales) {
  constexpr std::int32_t kRows = 2000;
  for (const IndexKeyFormat format : kKeyFormats) {
    Keys keys(1, kRows, format);
    Random random(960);
    std::array<float, kIndexHeadDim> key;
    for (std::int32_t row = 0; row < kRows; ++row) {
      for (std::size_t i = 0; i < kIndexHeadDim; ++i) {
        key[i] =
            std::ldexp(Keys::uniform(random), -static_cast<int>((i / 32 * 7 + static_cast<std::size_t>(row)) % 24));
      }
      keys.set(0, row, key.data());
    }
    const TestStep step({{0, kRows * kRatio - 1, 2}});
    Call call = random_call(step, 64, 128, 961);
    for (std::size_t i = 0; i < call.q.size(); ++i) {
      call.q[i] = to_bf16(std::ldexp(to_float(call.q[i]), static_cast<int>(i / kIndexHeadDim % 60) - 30));
    }
    for (std::size_t i = 0; i < call.weight.size(); ++i) {
      call.weight[i] = to_bf16(std::ldexp(to_float(call.weight[i]), 30 - static_cast<int>(i % 67 % 60)));
    }
    SCOPED_TRACE(index_key_format_name(format));
    const Selection actual = select_on_gpu(step, call, keys);
    const Selection expected = select_on_cpu(step, call, keys);
    ASSERT_EQ(actual.count, expected.count);
    // Terms of very different size: a few rows may change places.
    std::vector<std::int32_t> changed;
    for (int t = 0; t < 2; ++t) {
      std::set_symmetric_difference(actual.rows.begin() + t * 128, actual.rows.begin() + (t + 1) * 128,
                                    expected.rows.begin() + t * 128, expected.rows.begin() + (t + 1) * 128,
                                    std::back_inserter(changed));
    }
    EXPECT_LE(changed.size(), 4U);
  }
}

TEST_F(IndexerTopkGpuTest, BlocksOfOtherSizes) {
  for (const std::int32_t block_rows : {16, 128, 192}) {
    for (const IndexKeyFormat format : kKeyFormats) {
      if (block_shape(format, block_rows).block_bytes % 16 != 0) continue;
      Keys keys(2, 1000, format, block_rows);
      keys.fill_random(2, 1000);
      const TestStep step({{1, 3990, 5}, {0, 3000, 1}});
      SCOPED_TRACE(std::string(index_key_format_name(format)) + ", block rows " + std::to_string(block_rows));
      check(step, random_call(step, 64, 200, 970, format), keys);
    }
  }
}

TEST_F(IndexerTopkGpuTest, RefusesWhatItDoesNotOffer) {
  Keys keys(1, 640, IndexKeyFormat::kFp8);
  const TestStep step({{0, 2559, 1}});
  const Call call = random_call(step, 129, 64, 995);
  const GpuStep device_step(gpu(), step);
  const DeviceArray<bf16> q(gpu(), call.q);
  IndexerTopkParams params = params_of(device_step.view(), call, keys);
  params.q = q.data();
  params.keys.blocks = reinterpret_cast<std::byte*>(q.data());
  EXPECT_TRUE(
      test::fails_with(gpu().ops().indexer_topk(params), StatusCode::kUnsupported, {"indexer_topk", "heads", "129"}));
  params.heads = 64;
  params.top_k = 0;
  EXPECT_TRUE(test::fails_with(gpu().ops().indexer_topk(params), StatusCode::kInvalidArgument, {"top_k", "0"}));
  params.top_k = 64;
  EXPECT_OK(gpu().reserve_scratch(1024));
  EXPECT_TRUE(test::fails_with(gpu().ops().indexer_topk(params), StatusCode::kResourceExhausted, {"scratch", "1024"}));
}

}  // namespace
}  // namespace dsv4rt
