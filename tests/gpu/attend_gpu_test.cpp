// attend on the GPU: against the CPU backend, and independence of batch, chunking, padding and grid.
#include "gpu/support/attend_gpu.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/attend_case.h"
#include "support/test_backend.h"

namespace dsv4rt::test {
namespace {

constexpr RowFormat kFormats[] = {RowFormat::kFp8DsMla, RowFormat::kFp8Row, RowFormat::kNvfp4, RowFormat::kBf16};

TEST_F(AttendGpuTest, EveryFormatAgreesWithTheCpu) {
  for (const RowFormat format : kFormats) {
    SCOPED_TRACE(row_format_name(format));
    for (const auto& [ratio, top_k] : {std::pair{0, 0}, {4, 0}, {4, 100}, {128, 0}}) {
      SCOPED_TRACE("ratio " + std::to_string(ratio) + " top_k " + std::to_string(top_k));
      const Setup setup({.format = format, .ratio = ratio, .top_k = top_k}, 3, 900);
      expect_agrees(setup, {{2, 0, 3}, {0, 700, 1}, {1, 126, 5}}, 2);
    }
  }
}

TEST_F(AttendGpuTest, HeadCounts) {
  for (const std::int32_t heads : {1, 8, 15, 16, 17, 32, 33, 64, 65, 80, 128}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    const Setup setup({.heads = heads, .ratio = 4, .top_k = 512}, 2, 3000);
    expect_agrees(setup, {{1, 2800, 2}, {0, 64, 1}});
  }
}

// Heads of a block that has a token alone: outputs leave 16 heads at a time, and no head beyond the token's is written.
TEST_F(AttendGpuTest, HeadCountsOfBlocksAlone) {
  for (const std::int32_t heads : {1, 15, 17, 40, 63, 65, 72}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    const Setup setup({.heads = heads, .ratio = 4, .top_k = 64}, 2, 900);
    expect_agrees(setup, {{0, 600, 75}, {1, 5, 75}}, 2);
  }
}

// Row counts around every boundary of tiles, shares and blocks.
TEST_F(AttendGpuTest, PositionSweeps) {
  for (const auto& [ratio, top_k] : {std::pair{0, 0}, {4, 512}, {4, 0}, {128, 0}}) {
    SCOPED_TRACE("ratio " + std::to_string(ratio) + " top_k " + std::to_string(top_k));
    const Setup setup({.heads = 16, .ratio = ratio, .top_k = top_k}, 64, 4200);
    std::vector<AttendPart> parts;
    for (std::int32_t i = 0; i < 32; ++i) parts.push_back({i, i * 5, 1});
    for (std::int32_t i = 32; i < 64; ++i) parts.push_back({i, (i - 31) * 128 + i % 7 - 3, 1});
    expect_agrees(setup, parts);
  }
}

// A launch each of the kernels with all their clusters and heads of a block, which follow from heads, tokens and rows.
// So few launches that tools can follow every access.
struct Launch {
  const char* name;
  RowFormat format;
  std::int32_t heads;
  std::int32_t tokens;
  std::int32_t first;  // position of the first token
};
class OneAttendLaunch : public AttendGpuTest, public testing::WithParamInterface<Launch> {
 protected:
  // A token each of so many sequences, at positions that differ.
  static std::vector<AttendPart> parts() {
    std::vector<AttendPart> parts;
    for (std::int32_t i = 0; i < GetParam().tokens; ++i) parts.push_back({i, GetParam().first + i * 10, 1});
    return parts;
  }
};
TEST_P(OneAttendLaunch, AgreesWithTheCpu) {
  const Launch& launch = GetParam();
  const Setup setup({.format = launch.format, .heads = launch.heads, .ratio = 4, .top_k = 1024}, launch.tokens,
                    launch.first + launch.tokens * 10);
  expect_agrees(setup, parts());
}
constexpr Launch kWarpgroupLaunches[] = {
    {"EightBlocks", RowFormat::kFp8DsMla, 16, 2, 700},   {"FourBlocks", RowFormat::kFp8DsMla, 16, 20, 1500},
    {"TwoBlocks", RowFormat::kFp8DsMla, 16, 50, 700},    {"TwoBlocksOfEightyHeads", RowFormat::kFp8DsMla, 80, 33, 700},
    {"TokensAlone", RowFormat::kFp8DsMla, 80, 40, 3000}, {"TokensInTurn", RowFormat::kFp8DsMla, 16, 140, 600}};
INSTANTIATE_TEST_SUITE_P(Warpgroups, OneAttendLaunch, testing::ValuesIn(kWarpgroupLaunches),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Portable, OneAttendLaunch,
                         testing::Values(Launch{"OneBlock", RowFormat::kFp8Row, 16, 2, 40},
                                         Launch{"TwoBlocks", RowFormat::kNvfp4, 16, 2, 160},
                                         Launch{"FourBlocks", RowFormat::kBf16, 16, 2, 2000},
                                         Launch{"EightBlocks", RowFormat::kFp8Row, 16, 2, 4096},
                                         Launch{"ThirtyTwoHeads", RowFormat::kFp8Row, 32, 36, 1800},
                                         Launch{"SixtyFourHeads", RowFormat::kNvfp4, 64, 36, 1800},
                                         Launch{"EightyHeads", RowFormat::kBf16, 80, 18, 1800}),
                         [](const auto& info) { return info.param.name; });

class LaunchOfScalesFarApart : public OneAttendLaunch {};
TEST_P(LaunchOfScalesFarApart, ScalesItsOutputs) {
  const Launch& launch = GetParam();
  expect_scales({.heads = launch.heads, .ratio = 4, .top_k = 1024}, launch.tokens, parts(),
                launch.first + launch.tokens * 10);
}
INSTANTIATE_TEST_SUITE_P(Warpgroups, LaunchOfScalesFarApart, testing::ValuesIn(kWarpgroupLaunches),
                         [](const auto& info) { return info.param.name; });

class LaunchFarFromTheWindow : public OneAttendLaunch {};
TEST_P(LaunchFarFromTheWindow, AgreesWithTheCpu) {
  const Launch& launch = GetParam();
  expect_agrees_far_apart({.format = launch.format, .heads = launch.heads, .ratio = 4, .top_k = 1024}, launch.tokens,
                          parts(), launch.first + launch.tokens * 10);
}
INSTANTIATE_TEST_SUITE_P(Warpgroups, LaunchFarFromTheWindow, testing::ValuesIn(kWarpgroupLaunches),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Portable, LaunchFarFromTheWindow,
                         testing::Values(Launch{"OneBlock", RowFormat::kFp8Row, 16, 2, 40},
                                         Launch{"FourBlocks", RowFormat::kBf16, 16, 2, 2000},
                                         Launch{"EightBlocks", RowFormat::kFp8Row, 16, 2, 4096},
                                         Launch{"ThirtyTwoHeads", RowFormat::kFp8Row, 32, 36, 1800},
                                         Launch{"SixtyFourHeads", RowFormat::kNvfp4, 64, 36, 1800}),
                         [](const auto& info) { return info.param.name; });

// The first tokens of a context have short windows, of one row at first; blocks of a cluster have some of it each.
TEST_F(AttendGpuTest, FarFromShortWindows) {
  for (const std::int32_t window : {1, 37, 128}) {
    SCOPED_TRACE("window " + std::to_string(window));
    for (const std::int32_t tokens : {24, 48}) {
      SCOPED_TRACE("tokens " + std::to_string(tokens));
      std::vector<AttendPart> parts;
      for (std::int32_t i = 0; i < tokens; ++i) parts.push_back({i, i < tokens / 2 ? 3 + i * 11 : i * 100, 1});
      expect_agrees_far_apart({.heads = 16, .ratio = 4, .top_k = 512, .window = window}, tokens, parts, 100 * tokens);
    }
    expect_agrees_far_apart({.heads = 64, .ratio = 4, .top_k = 64, .window = window}, 1, {{0, 0, 200}}, 250);
  }
}

TEST_F(AttendGpuTest, RunsFarFromTheWindowAgreeWithTheCpu) {
  expect_agrees_far_apart({.heads = 64, .ratio = 128}, 2, {{0, 8000, 137}, {1, 90, 50}}, 8200);
}

// Clusters of eight, four and two blocks, blocks that have a token alone and such that take them in turn.
TEST_F(AttendGpuTest, FarFromTheWindowEveryBatchAndChunkGivesTheSameBytes) {
  constexpr std::int32_t kTokens = 140;
  for (const auto& [format, top_k] :
       {std::pair{RowFormat::kFp8DsMla, 512}, {RowFormat::kFp8DsMla, 1024}, {RowFormat::kFp8Row, 512}}) {
    for (const std::int32_t exponent : kFarExponents) {
      SCOPED_TRACE(testing::Message() << row_format_name(format) << " top_k " << top_k << " exponent " << exponent);
      const Setup setup({.format = format, .ratio = 4, .top_k = top_k, .compressed_exponent = exponent}, kTokens, 5000);
      const std::size_t width = std::size_t{64} * kHeadDim;
      std::vector<AttendPart> parts;
      for (std::int32_t i = 0; i < kTokens; ++i) parts.push_back({i, 4300 + i * 3, 1});
      const auto whole = run(gpu(), setup, parts);
      for (const std::int32_t count : {1, 2, 5, 20, 50, 70, 139}) {
        const auto few = run(gpu(), setup, {parts.begin(), parts.begin() + count}, count % 3);
        expect_same({few.begin(), few.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * width)},
                    whole, 0, "batch of " + std::to_string(count));
      }
      const auto chunk = run(gpu(), setup, {{0, 100, kTokens}});
      for (const std::int32_t at : {0, 1, 27, 28, 80, 139}) {
        expect_same(run(gpu(), setup, {{0, 100 + at, 1}}), chunk, static_cast<std::size_t>(at) * width, "decode");
      }
      expect_same(run(gpu(), setup, {{0, 105, 33}}), chunk, 5 * width, "chunk of 33");
    }
  }
}

TEST_F(AttendGpuTest, FlashAndProShapes) {
  expect_agrees(Setup({.heads = 64, .ratio = 4, .top_k = 512}, 2, 9000), {{0, 8190, 4}, {1, 3000, 1}});
  expect_agrees(Setup({.heads = 128, .ratio = 4, .top_k = 1024}, 2, 9000), {{0, 8190, 4}, {1, 3000, 1}});
  expect_agrees(Setup({.heads = 64, .ratio = 128}, 1, 132000), {{0, 131071, 2}});
  expect_agrees(Setup({.heads = 64, .ratio = 128}, 1, 1049000), {{0, 1048570, 1}});
}

// Position of a token with `rows` rows, none of them selected, at a ratio of 4.
std::int32_t dense_position(std::int32_t rows) {
  return 4 * (rows - 128) + 1;
}

// Around where weights start to be relative to a power, and around every boundary of tiles, splits and pairs of tiles.
TEST_F(AttendGpuTest, DenseRowSweeps) {
  std::vector<AttendPart> parts;
  std::int32_t slot = 0;
  for (const std::int32_t rows :
       {1151, 1152, 1153, 1154, 1215, 1216, 1217, 1247, 1248, 1249, 1279, 1280, 1281, 1535, 1537,
        2047, 2048, 2049, 2111, 2112, 2113, 3071, 3073, 3135, 3137, 4095, 4096, 4097, 4129, 5000}) {
    parts.push_back({slot++, dense_position(rows), 1});
  }
  const Setup setup({.heads = 16, .ratio = 4}, slot, dense_position(5000) + 8);
  expect_agrees(setup, parts, 2);
}

TEST_F(AttendGpuTest, DenseHeadCounts) {
  for (const std::int32_t heads : {1, 8, 15, 16, 17, 32, 33, 63, 64, 65, 80, 128}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    const Setup setup({.heads = heads, .ratio = 4}, 2, dense_position(1400));
    expect_agrees(setup, {{1, dense_position(1300), 2}, {0, 64, 1}});
  }
}

TEST_F(AttendGpuTest, DenseRowsOfEveryFormat) {
  for (const RowFormat format : kFormats) {
    SCOPED_TRACE(row_format_name(format));
    const Setup setup({.format = format, .heads = 20, .ratio = 4}, 2, dense_position(2500));
    expect_agrees(setup, {{1, dense_position(1300), 2}, {0, dense_position(2400), 1}});
  }
}

// A short window, blocks of two rows, no rotation.
TEST_F(AttendGpuTest, DenseRowsOfOtherShapes) {
  expect_agrees(Setup({.heads = 64, .ratio = 4, .window = 37}, 1, 4 * 1500), {{0, 4 * 1300, 3}});
  expect_agrees(Setup({.heads = 64, .ratio = 4, .block_rows = 2}, 1, 4 * 1500), {{0, 4 * 1300, 3}});
  expect_agrees(Setup({.heads = 64, .ratio = 4, .rotates = false}, 1, 4 * 1500), {{0, 4 * 1300, 3}});
}

// Scores so far apart that what weights are relative to is raised again and again. A single row's weight may then be
// nearly all of a head's: its other BF16 neighbour is up to 0.8 % away, and the output's again.
TEST_F(AttendGpuTest, DenseScoresFarApart) {
  for (const float scale : {4.0F, 16.0F}) {
    SCOPED_TRACE("scale " + std::to_string(scale));
    Setup setup({.heads = 64, .ratio = 4}, 2, dense_position(2500));
    setup.query_scale = scale;
    expect_agrees(setup, {{1, dense_position(1300), 2}, {0, dense_position(2400), 1}}, 0,
                  {.most = 1.2e-2, .usual = 1.2e-2});
  }
}

TEST_F(AttendGpuTest, DenseRowsOfScalesFarApart) {
  expect_scales({.heads = 64, .ratio = 4}, 2, {{1, dense_position(1300), 2}, {0, dense_position(2400), 1}},
                dense_position(2500));
}

// Window rows are the first split's first ones, and what its weights are relative to; other rows' scores are far off.
TEST_F(AttendGpuTest, DenseRowsFarFromTheFirst) {
  expect_agrees_far_apart({.heads = 64, .ratio = 4}, 2, {{1, dense_position(1300), 2}, {0, dense_position(2400), 1}},
                          dense_position(2500));
}

// A block that goes over its splits again does so for those behind the first one that needs it: these must not change.
TEST_F(AttendGpuTest, DenseRowsFarFromTheFirstEveryBatchGivesTheSameBytes) {
  constexpr std::int32_t kTokens = 60;
  for (const std::int32_t exponent : kFarExponents) {
    SCOPED_TRACE("exponent " + std::to_string(exponent));
    const Setup setup({.heads = 64, .ratio = 4, .compressed_exponent = exponent}, kTokens, dense_position(1500));
    const std::size_t width = std::size_t{64} * kHeadDim;
    std::vector<AttendPart> parts;
    for (std::int32_t i = 0; i < kTokens; ++i) parts.push_back({i, dense_position(1160 + 5 * i), 1});
    const auto whole = run(gpu(), setup, parts);
    for (const std::int32_t at : {0, 1, 29, kTokens - 1}) {
      const auto alone = run(gpu(), setup, {parts[static_cast<std::size_t>(at)]});
      expect_same(alone, whole, static_cast<std::size_t>(at) * width, "token " + std::to_string(at));
    }
  }
}

// Blocks that take a run of splits add up, in memory, what tokens alone leave apart: to the same bytes, also where a
// split's power, of scores far from those before, becomes the run's, and where values are next to nothing.
TEST_F(AttendGpuTest, DenseRunsOfSplitsGiveTheBytesOfTokensAlone) {
  constexpr std::int32_t kTokens = 66;
  struct Rows {
    std::int32_t row_exponent;
    std::int32_t compressed_exponent;
    float query_scale;
  };
  for (const Rows& rows : {Rows{0, 0, 1.0F}, Rows{0, 0, 16.0F}, Rows{0, 4, 1.0F}, Rows{0, 6, 1.0F}, Rows{0, -6, 1.0F},
                           Rows{-112, 0, 1.0F}, Rows{-124, 0, 1.0F}}) {
    SCOPED_TRACE("exponents " + std::to_string(rows.row_exponent) + " and " + std::to_string(rows.compressed_exponent) +
                 ", queries times " + std::to_string(rows.query_scale));
    Setup setup(
        {.heads = 64, .ratio = 4, .row_exponent = rows.row_exponent, .compressed_exponent = rows.compressed_exponent},
        kTokens, dense_position(9000));
    setup.query_scale = rows.query_scale;
    const std::size_t width = std::size_t{64} * kHeadDim;
    std::vector<AttendPart> parts;
    for (std::int32_t i = 0; i < kTokens; ++i) parts.push_back({i, dense_position(1100 + 119 * i), 1});
    const cuda::AttendPlan plan = plan_of(setup, parts);
    ASSERT_TRUE(plan.dense && plan.dense->run > 1) << "blocks take single splits";
    const auto whole = run(gpu(), setup, parts);
    for (const std::int32_t at : {0, 1, 2, 7, 13, 20, 26, 33, 41, 48, kTokens - 1}) {
      const std::vector<AttendPart> token{parts[static_cast<std::size_t>(at)]};
      const cuda::AttendPlan alone = plan_of(setup, token);
      ASSERT_TRUE(!alone.dense || alone.dense->run == 1);
      expect_same(run(gpu(), setup, token), whole, static_cast<std::size_t>(at) * width, "token " + std::to_string(at));
    }
  }
}

// So little work that tools can follow every access: for some of the blocks two splits, or two runs of two, of 64 and
// of 16 heads.
TEST_F(AttendGpuTest, OneAttendOfDenseRows) {
  for (const std::int32_t tokens : {24, 40}) {
    const Setup setup({.heads = 80, .ratio = 4}, tokens, dense_position(1450));
    std::vector<AttendPart> parts;
    for (std::int32_t i = 0; i < tokens; ++i) parts.push_back({i, dense_position(i == 0 ? 200 : 1152 + 7 * i), 1});
    const cuda::AttendPlan plan = plan_of(setup, parts, 1);
    ASSERT_TRUE(plan.dense);
    ASSERT_EQ(plan.dense->run, tokens == 24 ? 1 : 2);
    expect_agrees(setup, parts, 1);
  }
}

// Far more rows than today's longest contexts leave, and past a table of 16-bit sizes.
TEST_F(AttendGpuTest, VeryLongDenseRows) {
  for (const std::int32_t rows : {5119, 5121, 10100, 10400, 20000}) {
    SCOPED_TRACE("rows " + std::to_string(rows));
    const Setup setup({.heads = 64, .ratio = 4}, 2, 4 * rows + 8);
    expect_agrees(setup, {{0, 4 * rows, 1}, {1, 100, 1}});
  }
}

// With splits that take turns in the scratch, beside tokens of the other kernel, at any place of a batch.
TEST_F(AttendGpuTest, DenseDecodeChunkAndBatchGiveTheSameBytes) {
  const Setup setup({.ratio = 128}, 40, 300000);
  const std::size_t width = std::size_t{64} * kHeadDim;
  const std::int32_t start = 131100;  // the first hundred tokens have few enough rows for the other kernel
  const auto whole = run(gpu(), setup, {{0, start, 250}});
  for (const std::int32_t at : {0, 1, 98, 99, 100, 249}) {
    expect_same(run(gpu(), setup, {{0, start + at, 1}}), whole, static_cast<std::size_t>(at) * width, "decode");
    expect_same(run(gpu(), setup, {{0, start + at, 1}}, 0, 1 << 20), whole, static_cast<std::size_t>(at) * width,
                "loose bounds");
  }
  for (const std::int32_t count : {2, 33, 150}) {
    expect_same(run(gpu(), setup, {{0, start + 1, count}}), whole, width, "chunk of " + std::to_string(count));
  }
  std::vector<AttendPart> parts;
  for (std::int32_t i = 1; i < 40; ++i) parts.push_back({i, i * 7000, 1 + i % 3});
  std::size_t before = 0;
  for (std::size_t i = 0; i < 20; ++i) before += static_cast<std::size_t>(parts[i].count);
  parts.insert(parts.begin() + 20, {0, start + 97, 4});
  const auto batch = run(gpu(), setup, parts, 7, 1 << 20);
  const auto first = batch.begin() + static_cast<std::ptrdiff_t>(before * width);
  expect_same({first, first + static_cast<std::ptrdiff_t>(4 * width)}, whole, 97 * width, "batch");
  // And with another amount of scratch.
  ASSERT_OK(gpu().reserve_scratch(std::size_t{4} << 20));
  expect_same(run(gpu(), setup, parts, 7), batch, 0, "little scratch");
  ASSERT_OK(gpu().reserve_scratch(1 << 18));
  const AttendInputs inputs(setup.shape, setup.bank, setup.slots, {{0, start + 200, 1}});
  const DeviceArray<std::byte> blocks(gpu(), setup.pool.bytes);
  const DeviceArray<std::int32_t> table(gpu(), setup.pool.table);
  const AttendArrays arrays(gpu(), inputs, setup.pool, blocks.data(), table.data());
  EXPECT_TRUE(fails_with(gpu().ops().attend(arrays.params), StatusCode::kResourceExhausted, {"attend needs"}));
}

TEST_F(AttendGpuTest, DecodeChunkAndBatchGiveTheSameBytes) {
  for (const auto& [ratio, top_k] : {std::pair{0, 0}, {4, 512}, {4, 0}, {128, 0}}) {
    SCOPED_TRACE("ratio " + std::to_string(ratio) + " top_k " + std::to_string(top_k));
    const Setup setup({.ratio = ratio, .top_k = top_k}, 9, 3000);
    const std::size_t width = std::size_t{64} * kHeadDim;
    const auto whole = run(gpu(), setup, {{0, 2400, 257}});
    for (const std::int32_t at : {0, 1, 3, 100, 127, 128, 256}) {
      expect_same(run(gpu(), setup, {{0, 2400 + at, 1}}), whole, static_cast<std::size_t>(at) * width, "decode");
    }
    for (const std::int32_t count : {2, 5, 17, 33, 65, 150}) {
      expect_same(run(gpu(), setup, {{0, 2401, count}}), whole, width, "chunk of " + std::to_string(count));
    }
    // Neighbours, padding and loose bounds change nothing.
    const auto batch = run(gpu(), setup, {{1, 5, 1}, {0, 2400, 4}, {2, 900, 40}, {3, 0, 7}, {4, 2999, 1}}, 11, 1 << 20);
    expect_same(
        {batch.begin() + static_cast<std::ptrdiff_t>(width), batch.begin() + static_cast<std::ptrdiff_t>(5 * width)},
        whole, 0, "batch");
  }
}

TEST_F(AttendGpuTest, FromTheFirstTokenOn) {
  for (const std::int32_t ratio : {0, 4, 128}) {
    const Setup setup({.heads = 64, .ratio = ratio, .top_k = ratio == 4 ? 64 : 0}, 1, 400);
    expect_agrees(setup, {{0, 0, 300}});
    const auto whole = run(gpu(), setup, {{0, 0, 300}});
    for (const std::int32_t at : {0, 1, 15, 16, 63, 64, 127, 128, 131, 255, 299}) {
      expect_same(run(gpu(), setup, {{0, at, 1}}), whole, static_cast<std::size_t>(at) * 64 * kHeadDim, "decode");
    }
  }
}

// So many tokens of a sequence, none of whose rows are selected, that they share decoded rows.
TEST_F(AttendGpuTest, RunsAgreeWithTheCpu) {
  for (const auto& [heads, ratio] : {std::pair{64, 0}, {64, 128}, {128, 128}}) {
    SCOPED_TRACE("heads " + std::to_string(heads) + " ratio " + std::to_string(ratio));
    expect_agrees(Setup({.heads = heads, .ratio = ratio}, 2, 8200), {{0, 8000, 137}, {1, 90, 50}}, 3);
  }
}

TEST_F(AttendGpuTest, RunsOfScalesFarApart) {
  expect_scales({.heads = 64, .ratio = 128}, 2, {{0, 8000, 137}, {1, 90, 50}}, 8200);
}

TEST_F(AttendGpuTest, PaddingRowsAreZero) {
  const Setup setup({.ratio = 4, .top_k = 512}, 1, 3000);
  const auto out = run(gpu(), setup, {{0, 2000, 2}}, 3);
  for (std::size_t i = std::size_t{2} * 64 * kHeadDim; i < out.size(); ++i) ASSERT_EQ(out[i].bits, 0) << i;
}

TEST_F(AttendGpuTest, RepeatedRunsGiveTheSameBytes) {
  const Setup setup({.ratio = 4, .top_k = 512}, 40, 3000);
  std::vector<AttendPart> parts;
  for (std::int32_t i = 0; i < 40; ++i) parts.push_back({i, 2500 + i, 1});
  const auto first = run(gpu(), setup, parts);
  for (int i = 0; i < 5; ++i) expect_same(run(gpu(), setup, parts), first, 0, "run " + std::to_string(i));
}

TEST_F(AttendGpuTest, WithoutFrequenciesNothingRotates) {
  const Setup rotating({.ratio = 4, .top_k = 512}, 1, 3000);
  Setup plain = rotating;
  plain.shape.rotates = false;
  expect_agrees(plain, {{0, 2000, 2}});
  const auto a = run(gpu(), rotating, {{0, 2000, 1}});
  const auto b = run(gpu(), plain, {{0, 2000, 1}});
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (i % kHeadDim < kNopeDim) {
      ASSERT_EQ(a[i].bits, b[i].bits) << i;
    }
  }
  EXPECT_NE(std::memcmp(a.data(), b.data(), a.size() * sizeof(bf16)), 0);
}

TEST_F(AttendGpuTest, RefusesWhatItCannotDo) {
  const Setup setup({.ratio = 4, .top_k = 512}, 1, 3000);
  const AttendInputs inputs(setup.shape, setup.bank, 1, {{0, 2000, 1}});
  const DeviceArray<std::byte> blocks(gpu(), setup.pool.bytes);
  const DeviceArray<std::int32_t> table(gpu(), setup.pool.table);
  const AttendArrays arrays(gpu(), inputs, setup.pool, blocks.data(), table.data());
  AttendParams params = arrays.params;
  params.heads = 0;
  EXPECT_TRUE(fails_with(gpu().ops().attend(params), StatusCode::kInvalidArgument, {"attend", "heads", "0"}));
  params = arrays.params;
  params.window = 1000;
  EXPECT_TRUE(fails_with(gpu().ops().attend(params), StatusCode::kInvalidArgument, {"attend", "window", "1000"}));
  params = arrays.params;
  params.q = reinterpret_cast<const bf16*>(reinterpret_cast<const std::byte*>(params.q) + 2);
  EXPECT_TRUE(fails_with(gpu().ops().attend(params), StatusCode::kInvalidArgument, {"attend", "q", "misaligned"}));
  params = arrays.params;
  params.row_format = RowFormat::kBf16;
  EXPECT_TRUE(fails_with(gpu().ops().attend(params), StatusCode::kInvalidArgument, {"attend", "rows.shape"}));
}

}  // namespace
}  // namespace dsv4rt::test
