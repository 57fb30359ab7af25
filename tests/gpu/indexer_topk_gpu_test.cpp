// indexer_topk on the GPU against the CPU's: the same rows, but for rows whose scores differ by less than FP32
// summation in another order can change; and the same bytes however tokens are grouped into steps.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>

#include "gpu/support/gpu.h"
#include "unit/backend/ops_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;
using test::DeviceArray;

constexpr std::array kKeyFormats = {IndexKeyFormat::kMxfp4, IndexKeyFormat::kNvfp4, IndexKeyFormat::kFp8,
                                    IndexKeyFormat::kBf16};
constexpr std::int32_t kRatio = 4;
constexpr float kHeadScale = 0.03f;

// A step whose metadata also lies on the device.
class GpuStep {
 public:
  GpuStep(Backend& gpu, const TestStep& step)
      : view_(step.view()),
        position_(gpu, {view_.token_position, tokens()}),
        sequence_(gpu, {view_.token_sequence, tokens()}),
        slot_(gpu, {view_.sequence_slot, sequences()}),
        start_(gpu, {view_.sequence_start, sequences()}),
        first_token_(gpu, {view_.sequence_first_token, sequences() + 1}) {
    view_.token_position = position_.data();
    view_.token_sequence = sequence_.data();
    view_.sequence_slot = slot_.data();
    view_.sequence_start = start_.data();
    view_.sequence_first_token = first_token_.data();
  }
  [[nodiscard]] const StepView& view() const { return view_; }

 private:
  [[nodiscard]] std::size_t tokens() const { return static_cast<std::size_t>(view_.counts.tokens); }
  [[nodiscard]] std::size_t sequences() const { return static_cast<std::size_t>(view_.counts.sequences); }

  StepView view_;
  DeviceArray<std::int32_t> position_, sequence_, slot_, start_, first_token_;
};

struct Selection {
  std::vector<std::int32_t> rows;   // [T, top_k]
  std::vector<std::int32_t> count;  // [T]
  bool operator==(const Selection&) const = default;
};

// Queries, weights and what else a call takes beside the keys.
struct Call {
  std::int32_t heads = 0;
  std::int32_t top_k = 0;
  std::vector<bf16> q;
  std::vector<bf16> weight;  // [T, heads + 3]
};

class IndexerTopkGpuTest : public test::GpuTest {
 protected:
  // Keys of `slots` sequences of `rows` rows in scattered blocks. Everything else in the pool is poison.
  class Keys {
   public:
    Keys(std::int32_t slots, std::int32_t rows, IndexKeyFormat format, std::int32_t block_rows = 64)
        : format(format), shape(block_shape(format, block_rows)), stride((rows + block_rows - 1) / block_rows) {
      const std::int64_t used = slots * stride;
      std::vector<std::int32_t> order(static_cast<std::size_t>(used + 3));
      std::iota(order.begin(), order.end(), 0);
      Random random(7);
      for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.bits() % (i + 1)]);
      table.assign(order.begin(), order.begin() + used);
      blocks = poisoned(static_cast<std::size_t>((used + 3) * shape.block_bytes), 80);
    }
    Keys& fill_random(std::int32_t slots, std::int32_t rows, std::uint64_t seed = 81) {
      std::array<float, kIndexHeadDim> key;
      Random random(seed);
      for (std::int32_t slot = 0; slot < slots; ++slot) {
        for (std::int32_t row = 0; row < rows; ++row) {
          for (float& value : key) value = uniform(random);
          set(slot, row, key.data());
        }
      }
      return *this;
    }
    void set(std::int32_t slot, std::int32_t row, const float* values) {
      std::array<float, kIndexHeadDim> rounded;
      for (std::size_t i = 0; i < kIndexHeadDim; ++i) rounded[i] = round_to_bf16(values[i]);
      encode_row(format, shape, rounded.data(), block_of(slot, row), row % shape.rows);
    }
    // Quick numbers in [-2, 2), a few of them large.
    static float uniform(Random& random) {
      const std::uint64_t bits = random.bits();
      const float value = static_cast<float>(static_cast<std::int32_t>(bits >> 32)) * 0x1p-30f;
      return (bits & 31) == 0 ? value * 6.0f : value;
    }
    std::byte* block_of(std::int32_t slot, std::int32_t row) {
      return blocks.data() + table[static_cast<std::size_t>(slot * stride + row / shape.rows)] * shape.block_bytes;
    }
    double score(std::int32_t slot, std::int32_t row, std::int32_t heads, const bf16* q, const bf16* weight) {
      std::array<float, kIndexHeadDim> key;
      decode_row(format, shape, block_of(slot, row), row % shape.rows, key.data());
      double sum = 0;
      for (int h = 0; h < heads; ++h) {
        double dot = 0;
        for (int i = 0; i < kIndexHeadDim; ++i) {
          dot += static_cast<double>(to_float(q[h * kIndexHeadDim + i])) *
                 static_cast<double>(key[static_cast<std::size_t>(i)]);
        }
        sum += std::max(dot, 0.0) * static_cast<double>(to_float(weight[h]) * kHeadScale);
      }
      return sum;
    }

    IndexKeyFormat format;
    BlockShape shape;
    std::int64_t stride;
    std::vector<std::int32_t> table;
    std::vector<std::byte> blocks;
  };

  static Call random_call(const TestStep& step, std::int32_t heads, std::int32_t top_k, std::uint64_t seed) {
    const auto tokens = static_cast<std::size_t>(step.tokens());
    return {heads, top_k, random_bf16(seed, tokens * static_cast<std::size_t>(heads * kIndexHeadDim)),
            random_bf16(seed + 1, tokens * static_cast<std::size_t>(heads + 3))};
  }

  // Single tokens, in turn of each of the sequences, at positions that see up to `rows` rows.
  static std::vector<Part> scattered_tokens(std::int32_t count, std::int32_t sequences, std::int32_t rows) {
    std::vector<Part> parts;
    for (std::int32_t i = 0; i < count; ++i) parts.push_back({i % sequences, (i * 7919 + 9000) % (rows * kRatio), 1});
    return parts;
  }

  static IndexerTopkParams params_of(const StepView& step, const Call& call, const Keys& keys) {
    return {.step = step,
            .heads = call.heads,
            .ratio = kRatio,
            .top_k = call.top_k,
            .q = nullptr,
            .head_weight = nullptr,
            .head_weight_stride = call.heads + 3,
            .head_scale = kHeadScale,
            .key_format = keys.format,
            .keys = {nullptr, keys.shape, nullptr, keys.stride},
            .topk_indices = nullptr,
            .topk_count = nullptr};
  }

  static Selection select_on_cpu(const TestStep& step, const Call& call, Keys& keys) {
    const auto tokens = static_cast<std::size_t>(step.tokens());
    Selection out{std::vector<std::int32_t>(tokens * static_cast<std::size_t>(call.top_k), -7),
                  std::vector<std::int32_t>(tokens, -7)};
    TestOps ops;
    IndexerTopkParams params = params_of(step.view(), call, keys);
    params.q = call.q.data();
    params.head_weight = call.weight.data();
    params.keys.blocks = keys.blocks.data();
    params.keys.block_table = keys.table.data();
    params.topk_indices = out.rows.data();
    params.topk_count = out.count.data();
    EXPECT_OK(ops->indexer_topk(params));
    return out;
  }

  static Selection select_on_gpu(const TestStep& step, const Call& call, const Keys& keys,
                                 std::size_t scratch_bytes = std::size_t{64} << 20) {
    const auto tokens = static_cast<std::size_t>(step.tokens());
    EXPECT_OK(gpu().reserve_scratch(scratch_bytes));
    const GpuStep device_step(gpu(), step);
    const DeviceArray<bf16> q(gpu(), call.q);
    const DeviceArray<bf16> weight(gpu(), call.weight);
    const DeviceArray<std::byte> blocks(gpu(), keys.blocks);
    const DeviceArray<std::int32_t> table(gpu(), keys.table);
    const DeviceArray<std::int32_t> rows(gpu(),
                                         std::vector<std::int32_t>(tokens * static_cast<std::size_t>(call.top_k), -7));
    const DeviceArray<std::int32_t> count(gpu(), std::vector<std::int32_t>(tokens, -7));
    IndexerTopkParams params = params_of(device_step.view(), call, keys);
    params.q = q.data();
    params.head_weight = weight.data();
    params.keys.blocks = blocks.data();
    params.keys.block_table = table.data();
    params.topk_indices = rows.data();
    params.topk_count = count.data();
    EXPECT_OK(gpu().ops().indexer_topk(params));
    return {rows.download(), count.download()};
  }

  // Tokens agree but for rows near the last selected score.
  static void expect_agreement(const TestStep& step, const Call& call, Keys& keys, const Selection& actual) {
    const Selection expected = select_on_cpu(step, call, keys);
    ASSERT_EQ(actual.count, expected.count);
    const StepView view = step.view();
    for (std::int32_t t = 0; t < step.tokens(); ++t) {
      const std::size_t at = static_cast<std::size_t>(t) * static_cast<std::size_t>(call.top_k);
      const std::span own(actual.rows.data() + at, static_cast<std::size_t>(call.top_k));
      const std::span reference(expected.rows.data() + at, static_cast<std::size_t>(call.top_k));
      if (std::equal(own.begin(), own.end(), reference.begin())) continue;
      const std::int32_t count = actual.count[static_cast<std::size_t>(t)];
      const std::int32_t slot = view.sequence_slot[view.token_sequence[t]];
      for (std::int32_t i = 1; i < count; ++i) {
        ASSERT_LT(own[static_cast<std::size_t>(i - 1)], own[static_cast<std::size_t>(i)]) << "token " << t;
      }
      std::vector<std::int32_t> changed;
      std::set_symmetric_difference(own.begin(), own.begin() + count, reference.begin(), reference.begin() + count,
                                    std::back_inserter(changed));
      ASSERT_LE(changed.size(), 6U) << "token " << t;
      double least = std::numeric_limits<double>::infinity();
      double most = -least;
      for (const std::int32_t row : changed) {
        ASSERT_GE(row, 0);
        ASSERT_LT(row, (view.token_position[t] + 1) / kRatio);
        const double score =
            keys.score(slot, row, call.heads, call.q.data() + std::int64_t{t} * call.heads * kIndexHeadDim,
                       call.weight.data() + std::int64_t{t} * (call.heads + 3));
        ASSERT_FALSE(std::isnan(score)) << "token " << t << ", row " << row;
        least = std::min(least, score);
        most = std::max(most, score);
      }
      EXPECT_LE(most - least, 2e-5 * std::max(1.0, std::abs(most))) << "token " << t << ": near ties only";
    }
  }

  static void check(const TestStep& step, const Call& call, Keys& keys) {
    expect_agreement(step, call, keys, select_on_gpu(step, call, keys));
  }
};

TEST_F(IndexerTopkGpuTest, AgreesWithTheCpuForEveryFormatAndHeadCount) {
  for (const IndexKeyFormat format : kKeyFormats) {
    Keys keys(2, 1333, format);
    keys.fill_random(2, 1333);
    for (const std::int32_t heads : {1, 8, 23, 64, 65, 128}) {
      SCOPED_TRACE(std::string(index_key_format_name(format)) + ", heads " + std::to_string(heads));
      const TestStep step({{0, 5290, 3}, {1, 2047, 1}, {0, 30, 1}}, 1);
      check(step, random_call(step, heads, 96, 900 + static_cast<std::uint64_t>(heads)), keys);
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
        check(step, random_call(step, 16, kTopK, 910), keys);
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

// Scores of nine values only: the k-th is tied with hundreds of others, in every block of a cluster.
TEST_F(IndexerTopkGpuTest, ManyTiesAtTheLimit) {
  for (const std::int32_t rows : {700, 5000, 33000, 70001}) {
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
      check(step, random_call(step, 64, 200, 970), keys);
    }
  }
}

// What a token selects is the same alone, among others, in any chunk and with any scratch memory.
TEST_F(IndexerTopkGpuTest, StepsAndScratchDoNotMatter) {
  constexpr std::int32_t kTopK = 100;
  constexpr std::int32_t kHeads = 64;
  for (const IndexKeyFormat format : kKeyFormats) {
    SCOPED_TRACE(index_key_format_name(format));
    Keys keys(3, 3000, format);
    keys.fill_random(3, 3000);
    // 257 tokens: a prefill across the lengths at which scoring begins, two decodes, another prefill.
    const std::vector<Part> parts = {{0, 350, 150}, {1, 11990, 1}, {2, 4000, 1}, {1, 7001, 105}};
    const TestStep step(parts, 3);
    const Call call = random_call(step, kHeads, kTopK, 980);
    const Selection whole = select_on_gpu(step, call, keys);
    expect_agreement(step, call, keys, whole);
    EXPECT_EQ(select_on_gpu(step, call, keys, std::size_t{3072} * 4 * 7), whole) << "seven tokens' scores at a time";

    const auto slice = [&](std::int32_t first, std::int32_t count, const TestStep& part_step) {
      Call part{kHeads, kTopK, {}, {}};
      part.q.assign(call.q.begin() + std::int64_t{first} * kHeads * kIndexHeadDim,
                    call.q.begin() + std::int64_t{first + count} * kHeads * kIndexHeadDim);
      part.weight.assign(call.weight.begin() + std::int64_t{first} * (kHeads + 3),
                         call.weight.begin() + std::int64_t{first + count} * (kHeads + 3));
      const Selection out = select_on_gpu(part_step, part, keys);
      EXPECT_TRUE(std::equal(out.rows.begin(), out.rows.end(), whole.rows.begin() + std::int64_t{first} * kTopK))
          << "tokens " << first << " to " << first + count;
      EXPECT_TRUE(std::equal(out.count.begin(), out.count.end(), whole.count.begin() + first));
    };
    for (const std::int32_t first : {0, 77, 100, 149}) slice(first, 1, TestStep({{0, 350 + first, 1}}));
    slice(13, 37, TestStep({{0, 363, 37}}));
    slice(150, 1, TestStep({{1, 11990, 1}}));
    slice(152, 3, TestStep({{1, 7001, 3}}));
    slice(200, 57, TestStep({{1, 7049, 57}}));
  }
}

// How many blocks share a token, and whether one kernel does it all, depends on the number of tokens: the last step's
// are too many for that.
TEST_F(IndexerTopkGpuTest, TokensBesideOneDoNotMatter) {
  constexpr std::int32_t kTopK = 100;
  constexpr std::int32_t kRows = 2500;
  constexpr std::int32_t kTokens = 300;
  for (const IndexKeyFormat format : kKeyFormats) {
    SCOPED_TRACE(index_key_format_name(format));
    Keys keys(4, kRows, format);
    keys.fill_random(4, kRows);
    const std::vector<Part> parts = scattered_tokens(kTokens, 4, kRows);
    const TestStep step(parts);
    const Call call = random_call(step, 8, kTopK, 987);
    const Selection whole = select_on_gpu(step, call, keys);
    expect_agreement(step, call, keys, whole);
    for (const std::int32_t tokens : {1, 2, 15, 16, 19, 31, 33, 44, 66, 67, 132}) {
      Call part = call;
      part.q.resize(static_cast<std::size_t>(tokens * part.heads * kIndexHeadDim));
      part.weight.resize(static_cast<std::size_t>(tokens * (part.heads + 3)));
      const Selection out = select_on_gpu(TestStep({parts.begin(), parts.begin() + tokens}), part, keys);
      EXPECT_TRUE(std::equal(out.rows.begin(), out.rows.end(), whole.rows.begin())) << tokens << " tokens";
      EXPECT_TRUE(std::equal(out.count.begin(), out.count.end(), whole.count.begin())) << tokens << " tokens";
    }
  }
}

// A launch each of the one kernel that scores and selects, with clusters of every size, which follow from the tokens;
// so few launches that tools can follow every access.
class OneSelectLaunch : public IndexerTopkGpuTest,
                        public ::testing::WithParamInterface<std::tuple<IndexKeyFormat, std::int32_t>> {};
TEST_P(OneSelectLaunch, AgreesWithTheCpu) {
  const auto& [format, tokens] = GetParam();
  constexpr std::int32_t kRows = 300;
  Keys keys(2, kRows, format);
  keys.fill_random(2, kRows);
  const TestStep step(scattered_tokens(tokens, 2, kRows));
  check(step, random_call(step, 16, 40, 988), keys);
}
// "fp8T20"
std::string format_and_number(const ::testing::TestParamInfo<std::tuple<IndexKeyFormat, std::int32_t>>& info,
                              char what) {
  return std::string(index_key_format_name(std::get<0>(info.param))) + what + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Clusters, OneSelectLaunch,
                         ::testing::Combine(::testing::ValuesIn(kKeyFormats), ::testing::Values(3, 20, 40, 67)),
                         [](const auto& info) { return format_and_number(info, 'T'); });

// One token with more rows than that kernel takes: scores go through memory, eight blocks select from them, which hold
// 4, 8 and 16 quads of ranks a lane.
class RowsInMemory : public IndexerTopkGpuTest,
                     public ::testing::WithParamInterface<std::tuple<IndexKeyFormat, std::int32_t>> {};
TEST_P(RowsInMemory, AgreeWithTheCpu) {
  const auto& [format, rows] = GetParam();
  Keys keys(1, rows, format);
  keys.fill_random(1, rows);
  const TestStep step({{0, rows * kRatio - 1, 1}});
  check(step, random_call(step, 16, 512, 991), keys);
}
std::string rows_name(const ::testing::TestParamInfo<std::tuple<IndexKeyFormat, std::int32_t>>& info) {
  return format_and_number(info, 'R');
}
INSTANTIATE_TEST_SUITE_P(Formats, RowsInMemory,
                         ::testing::Combine(::testing::ValuesIn(kKeyFormats), ::testing::Values(20500)), rows_name);
INSTANTIATE_TEST_SUITE_P(Long, RowsInMemory,
                         ::testing::Combine(::testing::Values(IndexKeyFormat::kMxfp4),
                                            ::testing::Values(65600, 131200)),
                         rows_name);

// More heads than the one kernel takes: scores go through memory, and two blocks select from them.
TEST_F(IndexerTopkGpuTest, TwoBlocksSelectFromScoresInMemory) {
  constexpr std::int32_t kRows = 5000;
  Keys keys(1, kRows, IndexKeyFormat::kMxfp4);
  keys.fill_random(1, kRows);
  const TestStep step({{0, kRows * kRatio - 1, 1}});
  check(step, random_call(step, 65, 512, 989), keys);
}

// The longest sequence decides how many blocks share a token; the others leave most of them without rows.
TEST_F(IndexerTopkGpuTest, ShortSequencesBesideALongOne) {
  constexpr std::int32_t kRows = 50000;
  for (const IndexKeyFormat format : {IndexKeyFormat::kMxfp4, IndexKeyFormat::kFp8}) {
    Keys keys(4, kRows, format);
    keys.fill_random(1, kRows).fill_random(4, 5000);
    const TestStep step({{0, kRows * kRatio - 1, 1}, {1, 2051, 1}, {2, 2048, 3}, {3, 19999, 1}, {1, 900, 1}}, 2);
    SCOPED_TRACE(index_key_format_name(format));
    check(step, random_call(step, 16, 512, 985), keys);
  }
}

TEST_F(IndexerTopkGpuTest, QuarterMillionRows) {
  constexpr std::int32_t kRows = 260000;
  Keys keys(1, kRows, IndexKeyFormat::kMxfp4);
  keys.fill_random(1, kRows);
  const TestStep step({{0, kRows * kRatio - 2, 2}});  // one row fewer, then all
  check(step, random_call(step, 8, 512, 990), keys);
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
