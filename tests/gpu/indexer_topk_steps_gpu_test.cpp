// indexer_topk on the GPU: a token selects the same however tokens are grouped into steps, whichever kernels serve them
// and however often they ran before.
#include <tuple>
#include <utility>

#include "backend/cuda/kernels/indexer_topk/params.h"
#include "gpu/support/indexer_topk_calls.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

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
    const Call call = random_call(step, kHeads, kTopK, 980, keys.format);
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

// Which kernels serve a token and how many blocks share it depends on the number of tokens and on the longest: few rows
// in one kernel, more counted as they are scored, many tokens in two kernels, as the last step's.
TEST_F(IndexerTopkGpuTest, TokensBesideOneDoNotMatter) {
  constexpr std::int32_t kTopK = 100;
  constexpr std::int32_t kTokens = 300;
  for (const std::int32_t rows : {2500, cuda::kMostFewRows + 140}) {
    for (const IndexKeyFormat format : kKeyFormats) {
      SCOPED_TRACE(std::string(index_key_format_name(format)) + ", rows " + std::to_string(rows));
      Keys keys(4, rows, format);
      keys.fill_random(4, rows);
      std::vector<Part> parts = scattered_tokens(kTokens, 4, rows);
      parts[0].start = rows * kRatio - 1;
      const TestStep step(parts);
      const Call call = random_call(step, 8, kTopK, 987, keys.format);
      const Selection whole = select_on_gpu(step, call, keys);
      expect_agreement(step, call, keys, whole);
      for (const std::int32_t tokens : {1, 2, 15, 16, 19, 31, 33, 44, 66, 67, 131, 132, 133, 255}) {
        Call part = call;
        part.q.resize(static_cast<std::size_t>(tokens * part.heads * kIndexHeadDim));
        part.weight.resize(static_cast<std::size_t>(tokens * (part.heads + 3)));
        const Selection out = select_on_gpu(TestStep({parts.begin(), parts.begin() + tokens}), part, keys);
        EXPECT_TRUE(std::equal(out.rows.begin(), out.rows.end(), whole.rows.begin())) << tokens << " tokens";
        EXPECT_TRUE(std::equal(out.count.begin(), out.count.end(), whole.count.begin())) << tokens << " tokens";
      }
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
  check(step, random_call(step, 16, 40, 988, keys.format), keys);
}
// "fp8T20"
std::string format_and_number(const ::testing::TestParamInfo<std::tuple<IndexKeyFormat, std::int32_t>>& info,
                              char what) {
  return std::string(index_key_format_name(std::get<0>(info.param))) + what + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Clusters, OneSelectLaunch,
                         ::testing::Combine(::testing::ValuesIn(kKeyFormats), ::testing::Values(3, 20, 40, 67)),
                         [](const auto& info) { return format_and_number(info, 'T'); });

// The same of rows that are counted as they are scored: blocks that share a token, and one for each.
class OneCountedLaunch : public OneSelectLaunch {};
TEST_P(OneCountedLaunch, AgreesWithTheCpu) {
  const auto& [format, tokens] = GetParam();
  constexpr std::int32_t kRows = cuda::kMostFewRows + 40;
  Keys keys(2, kRows, format);
  keys.fill_random(2, kRows);
  std::vector<Part> parts = scattered_tokens(tokens, 2, kRows);
  parts[0].start = kRows * kRatio - 1;
  const TestStep step(parts);
  check(step, random_call(step, 16, 40, 981, keys.format), keys);
}
INSTANTIATE_TEST_SUITE_P(Blocks, OneCountedLaunch,
                         ::testing::Combine(::testing::ValuesIn(kKeyFormats), ::testing::Values(2, 132)),
                         [](const auto& info) { return format_and_number(info, 'T'); });

// What blocks leave each other is zero again after every launch, or counts of the one before would decide.
TEST_F(IndexerTopkGpuTest, EveryReplayFindsCountsAtZero) {
  using Case = std::pair<IndexKeyFormat, std::int32_t>;
  // The last for a kernel of its own that selects.
  for (const auto& [format, most] :
       {Case{IndexKeyFormat::kMxfp4, 6000}, Case{IndexKeyFormat::kFp8, 6000}, Case{IndexKeyFormat::kMxfp4, 70000}}) {
    SCOPED_TRACE(std::string(index_key_format_name(format)) + ", rows " + std::to_string(most));
    Keys keys(4, most, format);
    keys.fill_random(4, most);
    // Tokens shared by blocks, short ones, padding; then fewer tokens with other scores in the same places.
    const std::int32_t last = most * kRatio - 1;
    const TestStep step({{0, last, 1}, {1, 100, 1}, {2, 2051, 1}, {3, 9000, 1}, {0, 2047, 1}}, 3);
    const TestStep fewer({{3, last - 1, 1}, {2, 20001, 1}}, 1);
    const Call call = random_call(step, 64, 512, 986, keys.format);
    const Call other = random_call(fewer, 64, 512, 1986, keys.format);
    ASSERT_OK(gpu().reserve_scratch(std::size_t{64} << 20));
    OnGpu first(step, call, keys);
    OnGpu second(fewer, other, keys);
    first.run();
    const Selection eager = first.take();
    expect_agreement(step, call, keys, eager);
    ASSERT_OK(gpu().begin_capture());
    first.run();
    second.run();
    auto captured = gpu().end_capture();
    ASSERT_OK(captured);
    Selection beside;
    for (int replay = 0; replay < 3; ++replay) {
      ASSERT_OK(gpu().launch(**captured));
      EXPECT_EQ(first.take(), eager) << replay;
      const Selection out = second.take();
      if (replay == 0) expect_agreement(fewer, other, keys, out);
      if (replay > 0) {
        EXPECT_EQ(out, beside) << replay;
      }
      beside = out;
    }
  }
}

// Blocks finish in whatever order they do.
TEST_F(IndexerTopkGpuTest, ManyLaunchesSelectTheSame) {
  constexpr std::int32_t kRows = 20000;
  Keys keys(2, kRows, IndexKeyFormat::kMxfp4);
  keys.fill_random(2, kRows);
  const TestStep step(scattered_tokens(5, 2, kRows));
  const Call call = random_call(step, 64, 512, 984, keys.format);
  ASSERT_OK(gpu().reserve_scratch(std::size_t{64} << 20));
  OnGpu on_gpu(step, call, keys);
  on_gpu.run();
  const Selection first = on_gpu.take();
  expect_agreement(step, call, keys, first);
  for (int i = 0; i < 200; ++i) {
    on_gpu.run();
    ASSERT_EQ(on_gpu.take(), first) << i;
  }
}

// So many tokens that smaller blocks select, each from more rows than it holds.
TEST_F(IndexerTopkGpuTest, ManyTokensOfManyRows) {
  constexpr std::int32_t kRows = 5000;
  Keys keys(1, kRows, IndexKeyFormat::kFp8);
  keys.fill_random(1, kRows);
  const TestStep step({{0, kRows * kRatio - 700, 700}});
  check(step, random_call(step, 4, 512, 982), keys);
}

// More heads than that kernel takes, one token: scores go through memory, eight blocks select from them, which hold 4,
// 8 and 16 quads of ranks a lane.
class RowsInMemory : public IndexerTopkGpuTest,
                     public ::testing::WithParamInterface<std::tuple<IndexKeyFormat, std::int32_t>> {};
TEST_P(RowsInMemory, AgreeWithTheCpu) {
  const auto& [format, rows] = GetParam();
  Keys keys(1, rows, format);
  keys.fill_random(1, rows);
  const TestStep step({{0, rows * kRatio - 1, 1}});
  check(step, random_call(step, 65, 512, 991, keys.format), keys);
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
  check(step, random_call(step, 65, 512, 989, keys.format), keys);
}

// The longest sequence decides how many blocks share a token; the others leave most of them without rows. With several
// tokens of a sequence and without.
TEST_F(IndexerTopkGpuTest, ShortSequencesBesideALongOne) {
  constexpr std::int32_t kRows = 66000;
  for (const IndexKeyFormat format : {IndexKeyFormat::kMxfp4, IndexKeyFormat::kFp8}) {
    Keys keys(4, kRows, format);
    keys.fill_random(1, kRows).fill_random(4, 5000);
    for (const std::int32_t tokens : {1, 3}) {
      const TestStep step({{0, kRows * kRatio - 1, 1}, {1, 2051, 1}, {2, 2048, tokens}, {3, 19999, 1}, {1, 900, 1}}, 2);
      SCOPED_TRACE(index_key_format_name(format));
      check(step, random_call(step, 16, 512, 985, keys.format), keys);
    }
  }
}

// Sequences of many lengths, of one token each, whose rows are counted as they are scored: blocks select for several
// tokens that they alone have rows of, and share others.
TEST_F(IndexerTopkGpuTest, SequencesOfManyLengths) {
  constexpr std::int32_t kSequences = 8;
  constexpr std::int32_t kRows = 20000;
  for (const IndexKeyFormat format : {IndexKeyFormat::kMxfp4, IndexKeyFormat::kFp8}) {
    Keys keys(kSequences, kRows, format);
    keys.fill_random(kSequences, kRows);
    for (const std::int32_t most : {cuda::kMostFewRows + 100, kRows}) {
      for (const std::int32_t tokens : {3, 40, 131}) {
        SCOPED_TRACE(std::string(index_key_format_name(format)) + ", " + std::to_string(tokens) + " tokens of up to " +
                     std::to_string(most) + " rows");
        std::vector<Part> parts = {{0, most * kRatio - 1, 1}};
        for (std::int32_t i = 1; i < tokens; ++i) {
          parts.push_back({i % kSequences, (400 + i * 997 % (most / (1 + i % 4) - 400)) * kRatio, 1});
        }
        const TestStep step(parts);
        check(step, random_call(step, 16, 512, 1985, keys.format), keys);
      }
    }
  }
}

// Selections take longer than all rows here: many blocks have no rows.
TEST_F(IndexerTopkGpuTest, SequencesOfFewRowsBesideOneOfMore) {
  constexpr std::int32_t kSequences = 8;
  constexpr std::int32_t kRows = cuda::kMostFewRows + 100;
  for (const IndexKeyFormat format : {IndexKeyFormat::kMxfp4, IndexKeyFormat::kFp8}) {
    SCOPED_TRACE(index_key_format_name(format));
    Keys keys(kSequences, kRows, format);
    keys.fill_random(kSequences, kRows);
    std::vector<Part> parts = {{0, kRows * kRatio - 1, 1}};
    for (std::int32_t i = 1; i < 131; ++i) {
      const std::int32_t rows = i % 3 == 0 ? 600 + i % 7 : 300;
      parts.push_back({i % kSequences, rows * kRatio, 1});
    }
    const TestStep step(parts);
    check(step, random_call(step, 16, 512, 2985, keys.format), keys);
  }
}

// A prompt whose blocks score several runs each: the queries of later runs come meanwhile. Runs of six tokens and
// fewer, of two tiles of heads, and sequences in between.
TEST_F(IndexerTopkGpuTest, PromptsOfManyRuns) {
  constexpr std::int32_t kRows = 200;
  for (const IndexKeyFormat format : kKeyFormats) {
    Keys keys(3, kRows, format);
    keys.fill_random(3, kRows);
    for (const std::int32_t heads : {64, 128}) {
      SCOPED_TRACE(std::string(index_key_format_name(format)) + ", heads " + std::to_string(heads));
      const TestStep step({{0, 0, 800}, {1, 799, 1}, {2, 100, 695}, {1, 200, 5}, {0, 0, 790}}, 3);
      const Call call = random_call(step, heads, 5, 983, keys.format);
      const Selection out = select_on_gpu(step, call, keys);
      expect_agreement(step, call, keys, out);
      EXPECT_EQ(select_on_gpu(step, call, keys), out);
    }
  }
}

// Up to as many rows as the one kernel has marks for, and more.
TEST_F(IndexerTopkGpuTest, QuarterMillionRows) {
  constexpr std::int32_t kRows = 263000;
  Keys keys(1, kRows, IndexKeyFormat::kMxfp4);
  keys.fill_random(1, kRows);
  for (const std::int32_t rows : {260000, 1 << 18, (1 << 18) + 1, kRows}) {
    const TestStep step({{0, rows * kRatio - 1, 1}});
    check(step, random_call(step, 8, 512, 990, keys.format), keys);
  }
  const TestStep two({{0, kRows * kRatio - 2, 2}});  // one row fewer, then all
  check(two, random_call(two, 8, 512, 990, keys.format), keys);
}

}  // namespace
}  // namespace dsv4rt
