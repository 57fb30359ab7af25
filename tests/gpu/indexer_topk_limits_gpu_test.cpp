// indexer_topk on the GPU where its kernels change their way: batches, clusters of every size, as many rows as are
// collected at most, ties in blocks of few threads. A query takes one coordinate of its token's keys, whose values are
// scores without rounding that matters: what must be chosen follows from the keys alone, row for row.
#include <string>

#include "backend/cuda/kernels/indexer_topk/params.h"
#include "backend/cuda/kernels/indexer_topk/select_state.h"
#include "gpu/support/indexer_topk_calls.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

class IndexerTopkLimitsGpuTest : public IndexerTopkGpuTest {
 protected:
  // One head; the query of token t is 1 at coordinate t % coordinates and 0 elsewhere.
  static Call coordinate_call(const TestStep& step, std::int32_t coordinates, std::int32_t top_k) {
    Call call = random_call(step, 1, top_k, 0);
    std::fill(call.q.begin(), call.q.end(), to_bf16(0.0F));
    std::fill(call.weight.begin(), call.weight.end(), to_bf16(1.0F));
    for (std::int32_t t = 0; t < step.tokens(); ++t) {
      call.q[static_cast<std::size_t>(t * kIndexHeadDim + t % coordinates)] = to_bf16(1.0F);
    }
    return call;
  }

  // The first `rows` rows of slot 0 by falling score of a coordinate, rows of equal scores by number.
  class Order {
   public:
    Order(Keys& keys, std::int32_t rows, std::int32_t coordinates) : row_(static_cast<std::size_t>(coordinates)) {
      std::vector<std::vector<float>> score(row_.size(), std::vector<float>(static_cast<std::size_t>(rows)));
      std::array<float, kIndexHeadDim> key;
      for (std::int32_t row = 0; row < rows; ++row) {
        decode_row(keys.format, keys.shape, keys.block_of(0, row), row % keys.shape.rows, key.data());
        for (std::size_t c = 0; c < row_.size(); ++c) {
          score[c][static_cast<std::size_t>(row)] = std::isnan(key[c]) ? -1.0F : std::max(key[c], 0.0F);
        }
      }
      for (std::size_t c = 0; c < row_.size(); ++c) {
        row_[c].resize(static_cast<std::size_t>(rows));
        std::iota(row_[c].begin(), row_[c].end(), 0);
        std::stable_sort(row_[c].begin(), row_[c].end(), [&](std::int32_t a, std::int32_t b) {
          return score[c][static_cast<std::size_t>(a)] > score[c][static_cast<std::size_t>(b)];
        });
      }
    }

    // Every token sees top_k rows or more.
    [[nodiscard]] Selection selection(const TestStep& step, std::int32_t top_k) const {
      Selection out;
      for (std::int32_t t = 0; t < step.tokens(); ++t) {
        const std::int32_t visible = (step.view().token_position[t] + 1) / kRatio;
        std::vector<std::int32_t> rows;
        for (const std::int32_t row : row_[static_cast<std::size_t>(t) % row_.size()]) {
          if (row < visible) rows.push_back(row);
          if (rows.size() == static_cast<std::size_t>(top_k)) break;
        }
        std::sort(rows.begin(), rows.end());
        out.rows.insert(out.rows.end(), rows.begin(), rows.end());
        out.count.push_back(static_cast<std::int32_t>(rows.size()));
      }
      return out;
    }

   private:
    std::vector<std::vector<std::int32_t>> row_;  // [coordinates][rows]
  };

  // Sequences of one token each over the same keys, token t sees 5 t rows fewer than `rows`.
  static TestStep single_tokens(std::int32_t tokens, std::int32_t rows) {
    std::vector<Part> parts;
    for (std::int32_t t = 0; t < tokens; ++t) parts.push_back({0, (rows - 5 * t) * kRatio - 1, 1});
    return TestStep(parts);
  }

  // Of `rows` rows `collected` score 1 and 500 of them 2, the others 0: the first ones, late ones, and some everywhere.
  static constexpr std::int32_t kPlacings = 3;
  static constexpr std::int32_t kTwos = 500;
  static Keys placed_keys(std::int32_t rows, std::int32_t collected) {
    Keys keys(1, rows, IndexKeyFormat::kMxfp4);
    const std::int32_t late = rows - collected - 200;  // whatever single_tokens() leaves out, they are visible
    const std::int32_t apart = (rows - 200) / collected;
    const auto value = [&](std::int32_t number) {
      // 11 divides no number of rows that a test collects: the twos are among them all.
      return number < 0 || number >= collected ? 0.0F : number * 11 % collected < kTwos ? 2.0F : 1.0F;
    };
    std::array<float, kIndexHeadDim> key{};
    for (std::int32_t row = 0; row < rows; ++row) {
      key[0] = value(row);
      key[1] = value(row - late);
      key[2] = row % apart == 0 ? value(row / apart) : 0.0F;
      keys.set(0, row, key.data());
    }
    return keys;
  }
};

// Scores that do not fit at once: the rows of later tokens are counted in the places of earlier ones, by one block and
// by clusters.
TEST_F(IndexerTopkLimitsGpuTest, BatchesCountInTheSamePlaces) {
  struct Case {
    IndexKeyFormat format;
    std::int32_t tokens, rows;
  };
  for (const Case& of : {Case{IndexKeyFormat::kBf16, 60, 20000}, Case{IndexKeyFormat::kMxfp4, 20, 70000}}) {
    SCOPED_TRACE(std::to_string(of.tokens) + " tokens");
    Keys keys(1, of.rows, of.format);
    keys.fill_random(1, of.rows);
    const TestStep step = single_tokens(of.tokens, of.rows);
    const Call call = coordinate_call(step, of.tokens, 512);
    const Selection expected = Order(keys, of.rows, of.tokens).selection(step, 512);
    // Half of it is counts; the other half holds the scores of 58 tokens, or of 16.
    ASSERT_OK(gpu().reserve_scratch(2 * static_cast<std::size_t>(cuda::kSelectStateBytes)));
    OnGpu on_gpu(step, call, keys);
    for (int i = 0; i < 3; ++i) {
      on_gpu.run();
      EXPECT_EQ(on_gpu.take(), expected) << i;
    }
    EXPECT_EQ(select_on_gpu(step, call, keys), expected) << "all tokens at once";
  }
}

// Eight, four and two blocks take a token, where there are 132 multiprocessors. What one of them has collected is all
// there is, or all have some; blocks end in whatever order they do.
TEST_F(IndexerTopkLimitsGpuTest, ClustersOfEverySize) {
  constexpr std::int32_t kRows = 70000;
  constexpr std::int32_t kCollected = 1500;
  Keys keys = placed_keys(kRows, kCollected);
  const Order order(keys, kRows, kPlacings);
  ASSERT_OK(gpu().reserve_scratch(std::size_t{64} << 20));
  for (const std::int32_t tokens : {3, 17, 34}) {
    SCOPED_TRACE(std::to_string(tokens) + " tokens");
    const TestStep step = single_tokens(tokens, kRows);
    for (const std::int32_t top_k : {kTwos + 12, kCollected}) {
      OnGpu on_gpu(step, coordinate_call(step, kPlacings, top_k), keys);
      const Selection expected = order.selection(step, top_k);
      for (int i = 0; i < 50; ++i) {
        for (int run = 0; run < 4; ++run) on_gpu.run();
        ASSERT_EQ(on_gpu.take(), expected) << "top " << top_k << ", " << i;
      }
    }
  }
  Keys random(1, kRows, IndexKeyFormat::kBf16);
  random.fill_random(1, kRows);
  for (const std::int32_t tokens : {17, 34}) {
    const TestStep step = single_tokens(tokens, kRows);
    EXPECT_EQ(select_on_gpu(step, coordinate_call(step, tokens, 512), random),
              Order(random, kRows, tokens).selection(step, 512))
        << tokens;
  }
}

// Launches of kernels that the tests of one launch in indexer_topk_steps_gpu_test.cpp do not reach, small enough for
// tools that follow every access: a cluster selects from rows counted by another kernel, blocks of few threads select.
TEST_F(IndexerTopkLimitsGpuTest, OneLaunchOfACluster) {
  constexpr std::int32_t kRows = 65603;
  Keys keys = placed_keys(kRows, 700);
  const TestStep step = single_tokens(1, kRows);
  EXPECT_EQ(select_on_gpu(step, coordinate_call(step, kPlacings, 512), keys),
            Order(keys, kRows, kPlacings).selection(step, 512));
}
TEST_F(IndexerTopkLimitsGpuTest, OneLaunchForManyTokens) {
  constexpr std::int32_t kRows = 300;
  Keys keys(1, kRows, IndexKeyFormat::kBf16);
  keys.fill_random(1, kRows);
  const TestStep step({{0, kRows * kRatio - 600, 600}});
  EXPECT_EQ(select_on_gpu(step, coordinate_call(step, kIndexHeadDim, 40), keys),
            Order(keys, kRows, kIndexHeadDim).selection(step, 40));
}

// As many rows with the k-th's digit or above as a block has places for, and one more, which is one too many: chosen
// all or all but one, and by their numbers.
TEST_F(IndexerTopkLimitsGpuTest, AsManyRowsAsAreCollected) {
  constexpr std::int32_t kMostCollected = 3072;  // row_selector.cuh
  for (const std::int32_t rows : {20000, 70000}) {
    for (const std::int32_t collected : {kMostCollected, kMostCollected + 1}) {
      Keys keys = placed_keys(rows, collected);
      const Order order(keys, rows, kPlacings);
      const TestStep step = single_tokens(kPlacings, rows);
      for (const std::int32_t top_k : {kTwos + 12, collected - 1, collected}) {
        EXPECT_EQ(select_on_gpu(step, coordinate_call(step, kPlacings, top_k), keys), order.selection(step, top_k))
            << rows << " rows, " << collected << " collected, top " << top_k;
      }
    }
  }
}

// Blocks of a token's own, from 132 to one, where tokens have rows of like number, and tiles that do not divide by
// blocks; and where one has so many more, by one tile, that blocks share the tiles of all: with 132 multiprocessors 37
// tiles of 32 tokens, 15 of 66 and 4 of 132. Every seventh token has nothing to choose.
TEST_F(IndexerTopkLimitsGpuTest, TokensOfLikeLengthHaveBlocksOfTheirOwn) {
  constexpr std::int32_t kTile = 64;
  constexpr std::int32_t kRows = 4096;
  for (const IndexKeyFormat format : {IndexKeyFormat::kBf16, IndexKeyFormat::kMxfp4}) {
    Keys keys(1, kRows + 60 * kTile, format);
    keys.fill_random(1, kRows + 60 * kTile);
    const Order order(keys, kRows + 60 * kTile, kIndexHeadDim);
    ASSERT_OK(gpu().reserve_scratch(std::size_t{64} << 20));
    for (const std::int32_t tokens : {1, 12, 32, 66, 132}) {
      for (const std::int32_t more :
           {0, 1, 3 * kTile, 4 * kTile, 14 * kTile, 15 * kTile, 36 * kTile, 37 * kTile, 60 * kTile}) {
        std::vector<Part> parts;
        for (std::int32_t t = 0; t < tokens; ++t) {
          const std::int32_t rows = t == tokens / 2 ? kRows + more : t % 7 == 3 ? 500 : kRows - t % 2;
          parts.push_back({0, rows * kRatio - 1, 1});
        }
        const TestStep step(parts);
        EXPECT_EQ(select_on_gpu(step, coordinate_call(step, kIndexHeadDim, 500), keys), order.selection(step, 500))
            << tokens << " tokens, " << more << " rows more";
      }
    }
  }
}

// Few rows, around the groups that threads keep where one kernel scores and selects, and some more: scores of which
// each row has its own, or a few tie at the limit, or so many that they are counted digit by digit, or the limit is far
// below the highest.
TEST_F(IndexerTopkLimitsGpuTest, FewRowsInEveryWay) {
  constexpr std::int32_t kWays = 5;
  for (const std::int32_t rows : {700, 1535, 1536, 1537, 3071, 3072, 3073, 4607, 4608}) {
    Keys keys(1, rows, IndexKeyFormat::kBf16);
    Random random(945);
    std::array<float, kIndexHeadDim> key{};
    for (std::int32_t row = 0; row < rows; ++row) {
      const std::int32_t number = row * 11 % rows;  // each once: 11 divides none of these lengths
      const float own = static_cast<float>(number % 128) / 128.0F;
      key[0] = std::abs(Keys::uniform(random));
      key[1] = number < 500 ? 2.0F : number < 520 ? 1.0F : own * 0.5F;
      key[2] = number < 500 ? 2.0F : number < 560 ? 1.0F : own * 0.5F;
      key[3] = number == 7 ? 4096.0F : 1.0F + own;
      key[4] = number == 7 ? 4096.0F : number < 400 ? 2.0F : 0.0F;
      keys.set(0, row, key.data());
    }
    const Order order(keys, rows, kWays);
    const TestStep step = single_tokens(kWays, rows);
    for (const std::int32_t top_k : {1, 501, 512, 520, 600}) {
      EXPECT_EQ(select_on_gpu(step, coordinate_call(step, kWays, top_k), keys), order.selection(step, top_k))
          << rows << " rows, top " << top_k;
    }
  }
}

// As many rows share the last chosen one's first digit as are compared with each other, one fewer and one more: rows of
// sixteen scores, of one, and of two that differ in a later digit. By the kernel of few rows, by clusters of
// blocks and by blocks alone, where those above are collected and where they are too many.
TEST_F(IndexerTopkLimitsGpuTest, AsManyRowsShareADigitAsAreCompared) {
  constexpr std::int32_t kWays = 3;
  constexpr auto kFew = static_cast<std::int32_t>(cuda::kMostComparedRows);
  constexpr std::int32_t kDifferent = 100;  // rows that not all tokens see
  ASSERT_OK(gpu().reserve_scratch(std::size_t{64} << 20));
  struct Case {
    std::int32_t rows, tokens, above;
  };
  for (const Case& of :
       {Case{2401, 3, 300}, Case{20001, 1, 300}, Case{20001, 1, 3072}, Case{20001, 9, 300}, Case{20001, 9, 3072}}) {
    for (const std::int32_t sharing : {kFew - 1, kFew, kFew + 1}) {
      Keys keys(1, of.rows, IndexKeyFormat::kBf16);
      const std::int32_t seen = of.rows - kDifferent;
      std::array<float, kIndexHeadDim> key{};
      for (std::int32_t row = 0; row < of.rows; ++row) {
        const std::int32_t number = row < seen ? row * 11 % seen : of.rows;  // once each: 11 divides none of these
        const bool shares = number >= of.above && number < of.above + sharing;
        const float other = number < of.above ? 4.0F : 0.25F;
        key[0] = shares ? 1.0F + static_cast<float>(number % 16) / 128.0F : other;
        key[1] = shares ? 1.0F : other;
        key[2] = shares ? 1.0F + static_cast<float>(number % 2) / 128.0F : other;
        keys.set(0, row, key.data());
      }
      const Order order(keys, of.rows, kWays);
      const TestStep step = single_tokens(of.tokens, of.rows);
      for (const std::int32_t top_k : {of.above + 1, of.above + sharing / 2, of.above + sharing - 1}) {
        OnGpu on_gpu(step, coordinate_call(step, kWays, top_k), keys);
        for (int i = 0; i < 2; ++i) {
          on_gpu.run();
          EXPECT_EQ(on_gpu.take(), order.selection(step, top_k))
              << of.rows << " rows, " << of.tokens << " tokens, " << of.above << " above, " << sharing << " share, top "
              << top_k << ", " << i;
        }
      }
    }
  }
}

// Blocks that score the last rows of several tokens, some of them whole tokens, select for all of these.
TEST_F(IndexerTopkLimitsGpuTest, BlocksSelectForSeveralTokens) {
  constexpr std::int32_t kRows = 60000;
  constexpr std::int32_t kShortTokens = 110;
  Keys keys(1, kRows, IndexKeyFormat::kBf16);
  keys.fill_random(1, kRows);
  for (const std::int32_t place : {0, 70, kShortTokens}) {  // where the long token is
    std::vector<Part> parts;
    for (std::int32_t t = 0; t < kShortTokens; ++t) parts.push_back({0, (520 + 7 * t) * kRatio - 1, 1});
    parts.insert(parts.begin() + place, {0, kRows * kRatio - 1, 1});
    const TestStep step(parts);
    ASSERT_OK(gpu().reserve_scratch(std::size_t{64} << 20));
    OnGpu on_gpu(step, coordinate_call(step, kShortTokens + 1, 512), keys);
    const Selection expected = Order(keys, kRows, kShortTokens + 1).selection(step, 512);
    for (int i = 0; i < 3; ++i) {  // nothing is left of the launch before
      on_gpu.run();
      EXPECT_EQ(on_gpu.take(), expected) << place << ", " << i;
    }
  }
}

// Few rows, of more tokens than there are multiprocessors: blocks of the one kernel follow one another.
TEST_F(IndexerTopkLimitsGpuTest, FewRowsOfMoreTokensThanMultiprocessors) {
  constexpr std::int32_t kRows = 2500;
  for (const IndexKeyFormat format : kKeyFormats) {
    Keys keys(1, kRows, format);
    keys.fill_random(1, kRows);
    for (const std::int32_t tokens : {133, 165, 200, 264, 265}) {
      const TestStep step = single_tokens(tokens, kRows);
      ASSERT_OK(gpu().reserve_scratch(std::size_t{64} << 20));
      OnGpu on_gpu(step, coordinate_call(step, kIndexHeadDim, 512), keys);
      const Selection expected = Order(keys, kRows, kIndexHeadDim).selection(step, 512);
      for (int i = 0; i < 2; ++i) {
        on_gpu.run();
        EXPECT_EQ(on_gpu.take(), expected) << tokens << " tokens, " << i;
      }
    }
  }
}

// Blocks that select for two tokens each, or for some that began in another block.
TEST_F(IndexerTopkLimitsGpuTest, ManyRowsOfMoreTokensThanMultiprocessors) {
  constexpr std::int32_t kRows = 18000;
  constexpr std::int32_t kCoordinates = 9;
  Keys keys(1, kRows, IndexKeyFormat::kMxfp4);
  keys.fill_random(1, kRows);
  const Order order(keys, kRows, kCoordinates);
  ASSERT_OK(gpu().reserve_scratch(std::size_t{64} << 20));
  for (const std::int32_t tokens : {133, 200, 264, 265}) {
    const TestStep step = single_tokens(tokens, kRows);
    OnGpu on_gpu(step, coordinate_call(step, kCoordinates, 512), keys);
    const Selection expected = order.selection(step, 512);
    for (int i = 0; i < 3; ++i) {
      on_gpu.run();
      EXPECT_EQ(on_gpu.take(), expected) << tokens << " tokens, " << i;
    }
  }
}

// Many rows, of so many tokens that each has several blocks, two or one, and of blocks that end one token and begin
// another: scores in no order, rising with the row, falling, of one value, of two, and so many at the limit that they
// are decided digit by digit, or one by one.
TEST_F(IndexerTopkLimitsGpuTest, ManyRowsInEveryWay) {
  constexpr std::int32_t kRows = 16000;
  constexpr std::int32_t kWays = 7;
  for (const IndexKeyFormat format : {IndexKeyFormat::kBf16, IndexKeyFormat::kMxfp4}) {
    Keys keys(1, kRows, format);
    Random random(950);
    std::array<float, kIndexHeadDim> key{};
    for (std::int32_t row = 0; row < kRows; ++row) {
      const std::int32_t number = row * 11 % kRows;  // each once: 11 does not divide it
      key[0] = std::abs(Keys::uniform(random));
      key[1] = static_cast<float>(row) / kRows;
      key[2] = static_cast<float>(kRows - row) / kRows;
      key[3] = 1.0F;
      key[4] = number < 300 ? 1.0F : 0.0F;
      key[5] = number < 500 ? 1.0F : number < 700 ? 0.5F : 0.25F * key[0];
      key[6] = number < 500 ? 1.0F : number < 520 ? 0.5F : 0.25F * key[0];
      keys.set(0, row, key.data());
    }
    const Order order(keys, kRows, kWays);
    ASSERT_OK(gpu().reserve_scratch(std::size_t{64} << 20));
    for (const std::int32_t tokens : {17, 40, 66, 100, 132}) {
      const TestStep step = single_tokens(tokens, kRows);
      for (const std::int32_t top_k : {1, 512, 1000}) {
        OnGpu on_gpu(step, coordinate_call(step, kWays, top_k), keys);
        const Selection expected = order.selection(step, top_k);
        for (int i = 0; i < 2; ++i) {  // nothing is left of the launch before
          on_gpu.run();
          ASSERT_EQ(on_gpu.take(), expected) << tokens << " tokens, top " << top_k << ", " << i;
        }
      }
    }
  }
}

// So many tokens that blocks of few threads select, from scores of one value, two and nine, with more rows at the limit
// than they list and fewer; and from scores so close that all share the leading digit, and more than they list.
TEST_F(IndexerTopkLimitsGpuTest, ManyTokensOfFewValues) {
  constexpr std::int32_t kRows = 6000;
  const TestStep step({{0, kRows * kRatio - 600, 600}});
  struct Case {
    IndexKeyFormat format;
    std::uint64_t values;
    float least, apart;
  };
  for (const Case& of : {Case{IndexKeyFormat::kMxfp4, 1, 0, 1}, Case{IndexKeyFormat::kMxfp4, 2, 0, 1},
                         Case{IndexKeyFormat::kMxfp4, 9, 0, 1}, Case{IndexKeyFormat::kBf16, 5, 1, 0x1p-7F}}) {
    Keys keys(1, kRows, of.format);
    Random random(940);
    std::array<float, kIndexHeadDim> key;
    for (std::int32_t row = 0; row < kRows; ++row) {
      for (float& value : key) value = of.least + of.apart * static_cast<float>(random.bits() % of.values);
      keys.set(0, row, key.data());
    }
    EXPECT_EQ(select_on_gpu(step, coordinate_call(step, kIndexHeadDim, 512), keys),
              Order(keys, kRows, kIndexHeadDim).selection(step, 512))
        << of.values;
  }
}

// Blocks of few threads that list as many rows as they can, and one more: 300 rows lie above them, and the last chosen
// ones are among them, of two values that share the leading digit.
TEST_F(IndexerTopkLimitsGpuTest, ManyTokensWithAsManyRowsAsAreListed) {
  constexpr std::int32_t kRows = 6000;
  constexpr std::int32_t kAbove = 300;
  constexpr std::int32_t kMostListed = 1024;
  const TestStep step({{0, kRows * kRatio - 600, 600}});
  for (const std::int32_t listed : {kMostListed - 1, kMostListed, kMostListed + 1}) {
    Keys keys(1, kRows, IndexKeyFormat::kBf16);
    std::array<float, kIndexHeadDim> key;
    for (std::int32_t row = 0; row < kRows; ++row) {
      const std::int32_t number = row * 7 % 5801;  // once each of the rows that all tokens see
      const bool of_all = row < 5801;
      for (std::size_t i = 0; i < key.size(); ++i) {
        const bool greater = (number + static_cast<std::int32_t>(i)) % 9 == 0;
        const float value = number < kAbove ? 4.0F : greater ? 1.0F + 0x1p-7F : 1.0F;
        key[i] = of_all && number < kAbove + listed ? value : 0.25F;
      }
      keys.set(0, row, key.data());
    }
    EXPECT_EQ(select_on_gpu(step, coordinate_call(step, kIndexHeadDim, 512), keys),
              Order(keys, kRows, kIndexHeadDim).selection(step, 512))
        << listed;
  }
}

// The same with keys that are no numbers: some of them, and so many that the last chosen are among them.
TEST_F(IndexerTopkLimitsGpuTest, ManyTokensOfKeysWithoutNumbers) {
  constexpr std::int32_t kRows = 5000;
  const TestStep step({{0, kRows * kRatio - 600, 600}});
  const std::vector<float> nan(kIndexHeadDim, std::nanf(""));
  for (const std::int32_t numbers : {4900, 300}) {
    Keys keys(1, kRows, IndexKeyFormat::kBf16);
    keys.fill_random(1, kRows);
    for (std::int32_t row = 0; row < kRows; ++row) {
      if (row * 7 % kRows >= numbers) keys.set(0, row, nan.data());
    }
    EXPECT_EQ(select_on_gpu(step, coordinate_call(step, kIndexHeadDim, 512), keys),
              Order(keys, kRows, kIndexHeadDim).selection(step, 512))
        << numbers;
  }
}

}  // namespace
}  // namespace dsv4rt
