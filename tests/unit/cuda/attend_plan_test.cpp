// Checks which kernels serve an attention, on devices that a stand-in describes.
#include <algorithm>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "backend/attend_weights.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/attend/dense_splits.h"
#include "backend/cuda/kernels/attend/plan.h"
#include "backend/cuda/kernels/attend/run_limits.h"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"
#include "support/expect_ok.h"
#include "support/fake_device_driver.h"

namespace dsv4rt::test {
namespace {

using cuda::AttendPlan;
using cuda::CudaDevice;
using cuda::DecodedRowsShape;
using cuda::DenseSplits;
using cuda::EvenShares;
using cuda::plan_attend;
using cuda::PortablePlan;
using cuda::RunPlan;
using cuda::SlowPath;
using cuda::WarpgroupPlan;

const std::int32_t kSelection = 0;  // its address stands for one

struct Case {
  std::int32_t tokens = 1;
  std::int32_t sequences = 0;  // 0: one for every token
  std::int32_t longest = 0;    // 0: as long as the average
  std::int32_t heads = 64;
  std::int32_t context = 1000;
  std::int32_t ratio = 0;
  std::int64_t top_k = 0;  // 0: no selection
  std::int32_t window = 128;
  std::int32_t block_rows = 64;
  RowFormat format = RowFormat::kFp8DsMla;
  std::size_t scratch_bytes = 0;
  std::size_t zero_bytes = 0;
};

AttendParams params_of(const Case& c) {
  AttendParams params;
  params.step.counts.tokens = c.tokens;
  const std::int32_t sequences = c.sequences == 0 ? c.tokens : c.sequences;
  params.step.counts.sequences = sequences;
  params.step.counts.longest_entry = c.longest == 0 ? (c.tokens + sequences - 1) / sequences : c.longest;
  params.step.counts.context_end = c.context;
  params.heads = c.heads;
  params.window = c.window;
  params.ring.format = params.row_format = c.format;
  params.ring.shape.rows = 131;
  params.staged_shape.rows = c.tokens;
  params.ratio = c.ratio;
  if (c.ratio > 0) {
    params.rows.shape = block_shape(c.format, c.block_rows);
    params.rows.table_stride = (c.context / c.ratio + c.block_rows) / c.block_rows;
  }
  if (c.top_k > 0) {
    params.topk_indices = &kSelection;
    params.topk_stride = c.top_k;
  }
  return params;
}

AttendPlan planned(FakeDeviceDriver& driver, const Case& c) {
  const auto device = CudaDevice::create(0, driver);
  EXPECT_OK(device);
  const auto plan = plan_attend(**device, params_of(c), c.scratch_bytes, c.zero_bytes);
  EXPECT_OK(plan);
  return plan.ok() ? *plan : AttendPlan{};
}

AttendPlan planned(const FakeDevice& device, const Case& c) {
  FakeDeviceDriver driver({device});
  return planned(driver, c);
}

// What was measured to be fastest on an H200, of 132 multiprocessors.
WarpgroupPlan h200_plan(const Case& c, std::int64_t most_rows) {
  const bool dense = c.top_k == 0 && most_rows > kMaximumRows;
  if (dense) most_rows = kMaximumRows;
  const auto clusters = [](int blocks) { return blocks == 8 ? 14 : blocks == 4 ? 30 : 66; };
  const std::int64_t tokens = c.tokens;
  const std::int64_t groups = (c.heads + 63) / 64;
  const std::int64_t items = tokens * groups;
  const auto fewest_rows = [&](int blocks) { return blocks == 8 ? 225 : blocks == 2 ? 1 : items <= 15 ? 129 : 481; };
  for (const int blocks : {8, 4, 2}) {
    if (most_rows < fewest_rows(blocks) || items > clusters(blocks)) continue;
    int heads = 64;
    while (blocks == 8 && heads > 16 && tokens * ((c.heads + heads / 2 - 1) / (heads / 2)) <= 14) heads /= 2;
    const int head_groups = (c.heads + heads - 1) / heads;
    return {.tokens = tokens,
            .cluster_blocks = blocks,
            .group_heads = heads,
            .groups = head_groups,
            .blocks = tokens * blocks,
            .grid_groups = head_groups,
            .dense = dense};
  }
  return {.tokens = tokens,
          .cluster_blocks = 1,
          .group_heads = 64,
          .groups = static_cast<int>(groups),
          .blocks = std::min<std::int64_t>(items, 132),
          .grid_groups = 1,
          .dense = dense};
}

PortablePlan h200_portable(const Case& c, std::int64_t most_rows) {
  PortablePlan plan{.cluster_blocks = static_cast<int>(std::clamp<std::int64_t>((most_rows + 159) / 160, 1, 8))};
  const auto fills = [&](int heads) {
    return c.heads > heads / 2 && c.tokens * plan.cluster_blocks * ((c.heads + heads - 1) / heads) >= 128;
  };
  plan.head_tiles = fills(64) ? 4 : fills(32) ? 2 : 1;
  return plan;
}

std::int64_t most_rows(const Case& c) {
  const std::int64_t window = std::min(c.window, c.context);
  if (c.ratio == 0) return window;
  const std::int64_t paged = std::int64_t{(c.context / c.ratio + c.block_rows) / c.block_rows} * c.block_rows;
  const std::int64_t compressed = c.top_k > 0 ? std::min<std::int64_t>(c.top_k, paged) : paged;
  return window + std::min<std::int64_t>(compressed, c.context / c.ratio);
}

TEST(AttendPlan, OfAnH200IsAsMeasured) {
  FakeDeviceDriver driver({FakeDevice{}});
  int several = 0;
  for (std::int32_t tokens = 1; tokens < 300; tokens += 1 + tokens / 20) {
    for (const std::int32_t heads : {1, 16, 24, 64, 128}) {
      for (const std::int32_t context : {1, 31, 128, 700, 5000, 70000, 600000}) {
        for (const Case& layer : {Case{}, Case{.ratio = 4, .top_k = 512}, Case{.ratio = 128}}) {
          Case c = layer;
          c.tokens = tokens, c.heads = heads, c.context = context;
          const AttendPlan plan = planned(driver, c);
          ASSERT_TRUE(plan.warpgroup) << tokens;
          EXPECT_EQ(*plan.warpgroup, h200_plan(c, most_rows(c))) << tokens << " " << heads << " " << context;
          EXPECT_FALSE(plan.portable);
          EXPECT_EQ(plan.slow, SlowPath::kNone);
          several += plan.warpgroup->cluster_blocks > 1 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(several, 100);
}

// Items beyond the multiprocessors are second ones of blocks alone, however few: clusters for the last tokens, in a
// launch of their own, take longer.
TEST(AttendPlan, TheLastTokensOfAnH200AreOfASecondRound) {
  FakeDeviceDriver driver({FakeDevice{}});
  const auto expect_alone = [&](std::int32_t tokens, std::int32_t heads, std::int64_t top_k) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens of " << heads << " heads");
    const Case c{.tokens = tokens, .heads = heads, .context = 9000, .ratio = 4, .top_k = top_k};
    const WarpgroupPlan plan = *planned(driver, c).warpgroup;
    EXPECT_EQ(plan.cluster_blocks, 1);
    EXPECT_EQ(plan.tokens, tokens);
    EXPECT_EQ(plan.blocks, std::min(tokens * (heads / 64), 132));
  };
  for (const std::int32_t tokens : {67, 132, 133, 136, 132 + 66, 264, 265, (4 * 132) + 1})
    expect_alone(tokens, 64, 512);
  for (const std::int32_t tokens : {34, 66, 67, 68, 128, 132, 133}) expect_alone(tokens, 128, 1024);
  // A block alone takes as many rows as any token has.
  expect_alone(128, 128, 1152);
}

// Up to 66 items are a pair's each where larger clusters have no place or take longer: those of four need many rows, or
// few tokens.
TEST(AttendPlan, PairsOfBlocksTakeFewRows) {
  FakeDeviceDriver driver({FakeDevice{}});
  const auto blocks = [&](std::int32_t tokens, std::int32_t heads, std::int32_t context, std::int64_t top_k) {
    const Case c{.tokens = tokens, .heads = heads, .context = context, .ratio = top_k < 0 ? 0 : 128, .top_k = 0};
    const Case selected{.tokens = tokens, .heads = heads, .context = context, .ratio = 4, .top_k = top_k};
    return planned(driver, top_k > 0 ? selected : c).warpgroup->cluster_blocks;
  };
  constexpr std::int64_t kWindow = -1;
  constexpr std::int64_t kDense = 0;
  EXPECT_EQ(blocks(1, 64, 9000, kWindow), 2);
  EXPECT_EQ(blocks(66, 64, 9000, kWindow), 2);
  EXPECT_EQ(blocks(67, 64, 9000, kWindow), 1);
  EXPECT_EQ(blocks(1, 64, 8192, kDense), 4);
  EXPECT_EQ(blocks(15, 64, 8192, kDense), 4);
  EXPECT_EQ(blocks(16, 64, 8192, kDense), 2);
  EXPECT_EQ(blocks(14, 64, 9000, 512), 8);
  EXPECT_EQ(blocks(16, 64, 9000, 512), 4);
  EXPECT_EQ(blocks(30, 64, 9000, 512), 4);
  EXPECT_EQ(blocks(31, 64, 9000, 512), 2);
  EXPECT_EQ(blocks(66, 64, 9000, 512), 2);
  EXPECT_EQ(blocks(33, 128, 9000, 1024), 2);
  EXPECT_EQ(blocks(34, 128, 9000, 1024), 1);
}

// Tokens of a step that come in runs divide among the multiprocessors, evenly; every token is in one block of a group.
TEST(AttendPlan, RunsOfTokensShareRows) {
  FakeDeviceDriver driver({FakeDevice{}});
  for (const std::int32_t heads : {64, 128, 192}) {
    const std::int32_t at_once = 132 / (heads / 64);
    for (const Case& layer : {Case{}, Case{.ratio = 128}}) {
      for (std::int32_t tokens = 1; tokens < 9000; tokens += 1 + tokens / 17) {
        Case c = layer;
        c.tokens = tokens, c.sequences = 1, c.heads = heads, c.context = 8192 + 127;
        const AttendPlan plan = planned(driver, c);
        ASSERT_EQ(plan.runs.has_value(), tokens > at_once) << tokens;
        ASSERT_NE(plan.runs.has_value(), plan.warpgroup.has_value());
        EXPECT_FALSE(plan.dense || plan.portable);
        EXPECT_EQ(plan.slow, SlowPath::kNone);
        if (!plan.runs) continue;
        const RunPlan& runs = *plan.runs;
        EXPECT_EQ(runs.groups, heads / 64);
        EXPECT_LE(runs.blocks, 132);
        EXPECT_EQ(runs.blocks % runs.groups, 0);
        const std::int64_t blocks = runs.blocks / runs.groups;
        EXPECT_GE(blocks * runs.block_tokens, tokens);
        EXPECT_LT((blocks - 1) * runs.block_tokens, tokens) << "a block without tokens";
        EXPECT_LT((std::int64_t{runs.block_tokens} - 1) * at_once, tokens) << "blocks of fewer tokens would do";
      }
    }
  }
}

// Blocks that have a token alone norm its queries, splits' too, and runs of tokens theirs; a step of which any other
// kernel takes a part does not.
TEST(AttendPlan, QueriesAreNormedInRunsAndWhereAllBlocksAreAlone) {
  FakeDeviceDriver driver({FakeDevice{}});
  const auto norms = [&](std::int32_t tokens, std::int32_t heads, std::int32_t ratio, std::int32_t context) {
    const std::int64_t top_k = ratio == 4 ? 512 : 0;
    const Case c{.tokens = tokens, .heads = heads, .context = context, .ratio = ratio, .top_k = top_k};
    return planned(driver, c).norms_queries();
  };
  for (const std::int32_t ratio : {4, 128}) {
    EXPECT_FALSE(norms(1, 64, ratio, 9000));
    EXPECT_FALSE(norms(66, 64, ratio, 9000));
    EXPECT_TRUE(norms(67, 64, ratio, 9000));
    EXPECT_TRUE(norms(132, 64, ratio, 9000));
    EXPECT_TRUE(norms(136, 64, ratio, 9000));
    EXPECT_TRUE(norms(256, 64, ratio, 9000));
    EXPECT_FALSE(norms(33, 128, ratio, 9000));
    EXPECT_TRUE(norms(34, 128, ratio, 9000));
  }
  EXPECT_TRUE(norms(100, 64, 128, 600000));
  EXPECT_TRUE(norms(8192, 64, 4, 8192));
  for (const std::int32_t ratio : {0, 128}) {
    const Case runs{.tokens = 4096, .sequences = 1, .context = 8192, .ratio = ratio};
    ASSERT_TRUE(planned(driver, runs).runs);
    EXPECT_TRUE(planned(driver, runs).norms_queries());
  }
  EXPECT_FALSE(planned(FakeDevice{.sm90a_code = false}, {.tokens = 100}).norms_queries());
}

TEST(AttendPlan, OtherStepsAreNotServedAsRuns) {
  const auto has_runs = [](const Case& c) { return planned(FakeDevice{}, c).runs.has_value(); };
  const Case prefill{.tokens = 4096, .sequences = 1, .context = 8192, .ratio = 128};
  EXPECT_TRUE(has_runs(prefill));
  const auto changed = [&](auto member, auto value) {
    Case c = prefill;
    c.*member = value;
    return c;
  };
  EXPECT_TRUE(has_runs(changed(&Case::sequences, 2048)));
  EXPECT_FALSE(has_runs(changed(&Case::sequences, 2049)));
  EXPECT_FALSE(has_runs(changed(&Case::sequences, 4096)));
  EXPECT_FALSE(has_runs(changed(&Case::heads, 32)));
  EXPECT_FALSE(has_runs(changed(&Case::heads, 80)));
  EXPECT_FALSE(has_runs(changed(&Case::window, 127)));
  EXPECT_FALSE(has_runs(changed(&Case::ratio, 127)));
  EXPECT_FALSE(has_runs(changed(&Case::top_k, std::int64_t{64})));
  EXPECT_FALSE(has_runs(changed(&Case::format, RowFormat::kBf16)));
  EXPECT_TRUE(has_runs(changed(&Case::context, 8192 + 127)));
  EXPECT_FALSE(has_runs(changed(&Case::context, 8192 + 128)));
  EXPECT_FALSE(planned(FakeDevice{.sm90a_code = false}, prefill).runs);
  // A prompt beside sequences of one token each: so many of these that a block may have no others.
  EXPECT_TRUE(has_runs({.tokens = 4096, .sequences = 10, .longest = 4087, .context = 8192}));
  EXPECT_FALSE(has_runs({.tokens = 4096, .sequences = 11, .longest = 4086, .context = 8192}));
  EXPECT_TRUE(has_runs({.tokens = 4096, .sequences = 11, .longest = 744, .context = 8192}));
  EXPECT_FALSE(has_runs({.tokens = 4096, .sequences = 11, .longest = 745, .context = 8192}));
  // Without compressed rows a context may be as long as it likes.
  EXPECT_TRUE(has_runs({.tokens = 4096, .sequences = 1, .context = 1000000}));
}

TEST(AttendPlan, PortableBlocksOfAnH200AreAsMeasured) {
  FakeDeviceDriver driver({FakeDevice{}});
  for (std::int32_t tokens = 1; tokens < 300; ++tokens) {
    for (const std::int32_t heads : {1, 16, 24, 33, 64, 128}) {
      const Case c{.tokens = tokens, .heads = heads, .context = 7 * tokens, .ratio = 4, .format = RowFormat::kBf16};
      const AttendPlan plan = planned(driver, c);
      ASSERT_TRUE(plan.portable);
      EXPECT_EQ(*plan.portable, h200_portable(c, most_rows(c))) << tokens << " " << heads;
    }
  }
}

TEST(AttendPlan, EveryReasonForThePortableKernelIsNamed) {
  const std::pair<Case, SlowPath> cases[] = {
      {Case{.format = RowFormat::kBf16}, SlowPath::kAttendFormat},
      {Case{.format = RowFormat::kNvfp4}, SlowPath::kAttendFormat},
      {Case{.window = cuda::kMappedWindow + 1}, SlowPath::kAttendWindow},
      {Case{.ratio = 4, .block_rows = 48}, SlowPath::kAttendBlockRows},
      {Case{.ratio = 4, .top_k = cuda::kMappedRows + 1}, SlowPath::kAttendTopK},
  };
  for (const auto& [c, reason] : cases) {
    const AttendPlan plan = planned(FakeDevice{}, c);
    EXPECT_FALSE(plan.warpgroup);
    ASSERT_TRUE(plan.portable);
    EXPECT_FALSE(plan.dense);
    EXPECT_EQ(plan.slow, reason);
    EXPECT_FALSE(cuda::slow_path_text(reason).empty());
  }
}

TEST(AttendPlan, ManyUnselectedRowsTakeTheDenseKernelToo) {
  for (const std::int32_t heads : {1, 64, 65, 128}) {
    const AttendPlan plan = planned(FakeDevice{}, {.heads = heads, .context = 1000000, .ratio = 128});
    ASSERT_TRUE(plan.warpgroup && plan.dense);
    EXPECT_TRUE(plan.warpgroup->dense);
    EXPECT_EQ(plan.dense->groups, (heads + 63) / 64);
    EXPECT_EQ(plan.dense->splits, DenseSplits::kMost);
    EXPECT_FALSE(plan.portable);
    EXPECT_EQ(plan.slow, SlowPath::kNone);
  }
  // Not where no token can have so many, nor where rows are selected.
  const std::int32_t last = (kMaximumRows - 128) * 128 + 127;
  EXPECT_FALSE(planned(FakeDevice{}, {.context = last, .ratio = 128}).dense);
  EXPECT_FALSE(planned(FakeDevice{}, {.context = last, .ratio = 128}).warpgroup->dense);
  EXPECT_TRUE(planned(FakeDevice{}, {.context = last + 1, .ratio = 128}).dense);
  EXPECT_FALSE(planned(FakeDevice{}, {.context = 1000000, .ratio = 4, .top_k = 1024}).dense);
}

// The splits of a token are whole tiles one after the other, not empty and nearly equal, and no more than are planned
// for any token that may be longer.
TEST(AttendPlan, DenseSplitsFollowFromTheRowsAlone) {
  for (std::int32_t rows = 1; rows < 40000; rows += rows < 9000 ? 1 : 61) {
    const DenseSplits splits(rows);
    ASSERT_EQ(splits.tiles, (rows + 63) / 64);
    ASSERT_GE(splits.count, 1);
    ASSERT_LE(splits.count, DenseSplits::kMost);
    ASSERT_LE(splits.count, DenseSplits::most(rows)) << rows;
    ASSERT_LE(splits.count, DenseSplits::most(rows + 100)) << rows;
    ASSERT_EQ(splits.first_tile(0), 0);
    ASSERT_EQ(splits.first_tile(splits.count), splits.tiles);
    const std::int32_t least = splits.tiles / splits.count;
    for (std::int32_t s = 0; s < splits.count; ++s) {
      const std::int32_t tiles = splits.first_tile(s + 1) - splits.first_tile(s);
      ASSERT_TRUE(tiles == least || tiles == least + 1) << rows << " " << s;
    }
    if (rows > kMaximumRows) {
      ASSERT_GE(least, DenseSplits::kFewestTiles - 1) << rows;
    }
    // Runs cover the splits, none is empty, and there are no more and no longer ones than are planned for any token
    // that may be longer.
    ASSERT_GE(splits.run, 1) << rows;
    ASSERT_GE(splits.runs() * splits.run, splits.count) << rows;
    ASSERT_LT((splits.runs() - 1) * splits.run, splits.count) << rows;
    for (const std::int32_t longer : {0, 100, 30000}) {
      if (rows <= kMaximumRows) continue;  // not this kernel's
      const std::int32_t most = DenseSplits::most(rows + longer);
      ASSERT_LE(splits.run, DenseSplits::longest_run(most)) << rows;
      ASSERT_LE(splits.runs(), DenseSplits::most_runs(most)) << rows;
    }
  }
}

// Tokens are handed on where that spares a good part of a round.
TEST(AttendPlan, LastItemsDivideEvenlyWhereARoundIsHardlyBegun) {
  constexpr std::size_t kRoom = std::size_t{64} << 20;
  const auto even = [](Case c) {
    c.scratch_bytes = c.scratch_bytes == 0 ? kRoom : c.scratch_bytes;
    c.zero_bytes = c.zero_bytes == 0 ? kRoom : c.zero_bytes;
    const auto plan = planned(FakeDevice{}, c);
    EXPECT_TRUE(plan.warpgroup);
    return plan.warpgroup ? plan.warpgroup->even : std::nullopt;
  };
  const Case csa{.tokens = 136, .context = 8192, .ratio = 4, .top_k = 512};
  const auto with = [](Case c, std::int32_t tokens, std::int32_t heads, std::int64_t top_k) {
    c.tokens = tokens;
    c.heads = heads;
    c.top_k = top_k;
    return c;
  };
  EXPECT_EQ(even(csa), EvenShares::of(136, 132));
  EXPECT_EQ(even(with(csa, 68, 128, 1024)), EvenShares::of(136, 132));
  for (const std::int32_t tokens : {133, 136, 150, 158}) EXPECT_TRUE(even(with(csa, tokens, 64, 512))) << tokens;
  for (const std::int32_t tokens : {1, 30, 66, 68, 128, 132, 159, 180, 256, 264}) {
    EXPECT_FALSE(even(with(csa, tokens, 64, 512))) << tokens;
  }
  EXPECT_EQ(even(with(csa, 31 * 132 + 4, 64, 512)), EvenShares::of(31 * 132 + 4, 132));
  // Few rows are over before the next block has what the one before leaves.
  EXPECT_FALSE(even({.tokens = 136, .context = 8192, .ratio = 128}));
  EXPECT_FALSE(even({.tokens = 136, .context = 8192}));
  // Nor where rows lie decoded, or the dense kernel takes tokens, or there is no room.
  EXPECT_TRUE(even({.tokens = 136, .sequences = 1, .context = 8192, .ratio = 4, .top_k = 512}));
  EXPECT_FALSE(even({.tokens = 31 * 132 + 4, .sequences = 1, .context = 8192, .ratio = 4, .top_k = 512}));
  EXPECT_FALSE(even({.tokens = 136, .context = 1 << 18, .ratio = 128}));
  const auto shares = EvenShares::of(136, 132);
  Case c = csa;
  c.scratch_bytes = static_cast<std::size_t>(shares.bytes());
  c.zero_bytes = static_cast<std::size_t>(shares.zero_bytes());
  EXPECT_TRUE(even(c));
  --c.scratch_bytes;
  EXPECT_FALSE(even(c));
  ++c.scratch_bytes;
  --c.zero_bytes;
  EXPECT_FALSE(even(c));
}

// A block takes a whole run of splits where that leaves as many blocks busy as single ones do, or nearly.
TEST(AttendPlan, RunsOfSplitsWhereTheyFillTheDevice) {
  const auto run = [](std::int32_t tokens, std::int32_t heads, std::int32_t rows) {
    const Case c{.tokens = tokens, .heads = heads, .context = (rows - 128) * 128, .ratio = 128};
    const auto plan = planned(FakeDevice{}, c);
    EXPECT_TRUE(plan.dense);
    if (!plan.dense) return 0;
    EXPECT_EQ(plan.dense->parts(), plan.dense->run == 1 ? plan.dense->splits : rows > 1536 ? 4 : 3);
    EXPECT_EQ(plan.dense->token_bytes(), std::int64_t{(heads + 63) / 64} * plan.dense->parts() * cuda::kSplitBytes);
    return plan.dense->run;
  };
  for (const std::int32_t tokens : {1, 2, 8, 15, 16, 17}) EXPECT_EQ(run(tokens, 64, 8320), 1) << tokens;
  for (const std::int32_t tokens : {31, 32, 33, 64, 66, 128, 4096}) EXPECT_EQ(run(tokens, 64, 8320), 4) << tokens;
  EXPECT_EQ(run(34, 64, 8320), 1);  // the 34th would begin a second round of runs
  EXPECT_EQ(run(32, 64, 4224), 4);
  EXPECT_EQ(run(32, 64, 2176), 3);
  EXPECT_EQ(run(32, 64, 1216), 2);
  EXPECT_EQ(run(4096, 64, 1168), 2);
  EXPECT_EQ(run(32, 128, 8320), 4);
  EXPECT_EQ(run(8, 128, 8320), 1);
}

// A build for 90 without 90a on Hopper: its kernel for Hopper is empty.
TEST(AttendPlan, WithoutCodeForHopperAllIsPortable) {
  FakeDeviceDriver driver({FakeDevice{.sm90a_code = false}});
  for (const std::int32_t tokens : {1, 5, 200}) {
    for (const Case& layer : {Case{}, Case{.ratio = 4, .top_k = 512}, Case{.context = 1000000, .ratio = 128}}) {
      Case c = layer;
      c.tokens = tokens;
      const AttendPlan plan = planned(driver, c);
      EXPECT_FALSE(plan.warpgroup);
      ASSERT_TRUE(plan.portable);
      EXPECT_FALSE(plan.dense);
      EXPECT_EQ(plan.slow, SlowPath::kNoSm90a);
    }
  }
  EXPECT_EQ(driver.cluster_calls, 0);
}

// Where there is no faster kernel nothing is slow.
TEST(AttendPlan, OtherDevicesHaveThePortableKernelAlone) {
  const AttendPlan plan =
      planned(FakeDevice{.compute_major = 10, .multiprocessors = 148, .sm90a_code = false}, {.tokens = 16});
  EXPECT_FALSE(plan.warpgroup);
  EXPECT_TRUE(plan.portable);
  EXPECT_EQ(plan.slow, SlowPath::kNone);
}

// 64 heads of a block take 201 KiB.
TEST(AttendPlan, SmallSharedMemoryHoldsFewerHeads) {
  const Case c{.tokens = 1000, .format = RowFormat::kBf16};
  EXPECT_EQ(planned(FakeDevice{}, c).portable->head_tiles, 4);
  EXPECT_EQ(planned(FakeDevice{.block_shared_bytes = 101376, .sm90a_code = false}, c).portable->head_tiles, 1);
}

// Steps in which many tokens read each row have them decoded once.
TEST(AttendPlan, RowsOfPromptsAreDecodedBefore) {
  constexpr std::size_t kScratchBytes = std::size_t{64} << 20;
  const auto decoded = [](Case c) {
    const AttendPlan plan = planned(FakeDevice{}, c);
    EXPECT_TRUE(plan.warpgroup);
    return plan.decoded;
  };
  const Case prompt{
      .tokens = 4096, .sequences = 1, .context = 12288, .ratio = 4, .top_k = 512, .scratch_bytes = kScratchBytes};
  const DecodedRowsShape rows{.sequences = 1, .staged = 4096, .ring = 131, .compressed = 3072};
  EXPECT_EQ(decoded(prompt), rows);
  EXPECT_EQ(rows.bytes(), (4096 + 131 + 3072) * 1024);

  Case c = prompt;  // no more room than there is
  c.scratch_bytes = static_cast<std::size_t>(rows.bytes());
  EXPECT_EQ(decoded(c), rows);
  --c.scratch_bytes;
  EXPECT_EQ(decoded(c), std::nullopt);

  c = prompt;  // and of several sequences
  c.sequences = 4;
  EXPECT_EQ(decoded(c), (DecodedRowsShape{.sequences = 4, .staged = 4096, .ring = 131, .compressed = 3072}));

  c = prompt;  // every 64 heads read a row
  c.tokens = 250;
  c.context = 2000;
  EXPECT_EQ(decoded(c), std::nullopt);
  c.heads = 128;
  EXPECT_TRUE(decoded(c));

  // Short steps, and contexts of which tokens read little.
  c = prompt;
  c.tokens = 300;
  EXPECT_EQ(decoded(c), std::nullopt);
  c.tokens = 700;
  c.context = 2000;
  EXPECT_TRUE(decoded(c));
  c = prompt;
  c.context = 1 << 20;
  c.scratch_bytes = std::size_t{1} << 30;
  EXPECT_EQ(decoded(c), std::nullopt);

  // Sequences of a captured step are only bounded, by its tokens, however often rows would be read.
  for (const std::int32_t heads : {64, 128, 4096}) {
    for (const std::int32_t tokens : {133, 256, 1024, 8192}) {
      for (const auto& [ratio, top_k] : {std::pair{0, 0}, {4, 512}, {4, 1024}, {128, 0}}) {
        for (const std::int32_t context : {128, 1024, 8192, 1 << 17, 1 << 20}) {
          const Case captured{.tokens = tokens,
                              .heads = heads,
                              .context = context,
                              .ratio = ratio,
                              .top_k = top_k,
                              .scratch_bytes = std::size_t{1} << 40};
          EXPECT_EQ(decoded(captured), std::nullopt)
              << tokens << " heads " << heads << " ratio " << ratio << " context " << context;
        }
      }
    }
  }

  // Splits of many rows leave at least half of the scratch.
  const Case dense{.tokens = 4096, .sequences = 1, .context = 1 << 18, .ratio = 128, .scratch_bytes = kScratchBytes};
  const DecodedRowsShape long_rows{.sequences = 1, .staged = 4096, .ring = 131, .compressed = 2048};
  EXPECT_EQ(decoded(dense), long_rows);
  c = dense;
  c.scratch_bytes = static_cast<std::size_t>(2 * long_rows.bytes());
  EXPECT_EQ(decoded(c), long_rows);
  --c.scratch_bytes;
  EXPECT_EQ(decoded(c), std::nullopt);
  // And no less than one token's splits take, where that is more.
  c.heads = 1024;
  const std::int64_t token_bytes = planned(FakeDevice{}, c).dense->token_bytes();
  ASSERT_GT(token_bytes, long_rows.bytes());
  c.scratch_bytes = static_cast<std::size_t>(long_rows.bytes() + token_bytes);
  EXPECT_EQ(decoded(c), long_rows);
  --c.scratch_bytes;
  EXPECT_EQ(decoded(c), std::nullopt);
}

// A table has no more rows than its blocks.
TEST(AttendPlan, DecodedRowsEndWithTheTable) {
  AttendParams params = params_of({.tokens = 4096, .sequences = 1, .context = 12288, .ratio = 4, .top_k = 512});
  params.step.counts.context_end = 1 << 16;
  const auto decoded = cuda::plan_decoded_rows(params, 640, std::int64_t{1} << 40);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->compressed, params.rows.table_stride * params.rows.shape.rows);
}

TEST(AttendPlan, FailuresOfTheDriverAreReturned) {
  FakeDeviceDriver driver({FakeDevice{.clusters_error = cudaErrorInvalidValue}});
  const auto device = CudaDevice::create(0, driver);
  ASSERT_OK(device);
  EXPECT_FALSE(plan_attend(**device, params_of({}), 0, 0).ok());
  driver.device(0).clusters_error = cudaSuccess;
  EXPECT_OK(plan_attend(**device, params_of({}), 0, 0));
}

}  // namespace
}  // namespace dsv4rt::test
