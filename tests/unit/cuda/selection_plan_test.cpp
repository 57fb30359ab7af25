// Checks which kernels serve a selection and a row update, on devices that a stand-in describes, and what people are
// told.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/indexer_topk/stages.h"
#include "backend/cuda/kernels/write_kv/launch.h"
#include "engine/step_shape.h"
#include "support/expect_ok.h"
#include "support/fake_device_driver.h"

namespace dsv4rt::test {
namespace {

using cuda::CudaDevice;
using cuda::plan_selection;
using cuda::ScoreBatch;
using cuda::ScoreKernel;
using cuda::SelectionPlan;
using cuda::SlowPath;

float scores = 0;  // their addresses stand for the scratch region's parts
cuda::SelectState state;

IndexerTopkParams selection(std::int32_t block_rows = 128) {
  IndexerTopkParams params;
  params.heads = 64;
  params.ratio = 4;
  params.top_k = 512;
  params.key_format = IndexKeyFormat::kMxfp4;
  params.keys.shape = block_shape(params.key_format, block_rows);
  return params;
}

ScoreBatch batch_of(std::int32_t tokens, std::int32_t rows) {
  return {.tokens = tokens, .most_rows = rows, .stride = (rows + 255) / 256 * 256, .scores = &scores, .state = &state};
}

SelectionPlan planned(FakeDeviceDriver& driver, const IndexerTopkParams& params, const ScoreBatch& batch) {
  const auto device = CudaDevice::create(0, driver);
  EXPECT_OK(device);
  const auto plan = plan_selection(**device, params, batch);
  EXPECT_OK(plan);
  return plan.ok() ? *plan : SelectionPlan{};
}

TEST(SelectionPlan, HopperCountsRowsWhereTokensHaveKeysOfTheirOwn) {
  FakeDeviceDriver driver({FakeDevice{}});
  const auto expect = [&](const IndexerTopkParams& params, const ScoreBatch& batch, std::int32_t blocks) {
    const SelectionPlan plan = planned(driver, params, batch);
    EXPECT_EQ(plan.scores, ScoreKernel::kWgmma);
    EXPECT_EQ(plan.counted_blocks, blocks);
    EXPECT_EQ(plan.slow, SlowPath::kNone);
  };
  expect(selection(), batch_of(4, 2560), 0);  // in one kernel
  expect(selection(), batch_of(4, 2561), 1);
  expect(selection(), batch_of(1, 16383), 1);
  expect(selection(), batch_of(1, 16384), 8);
  expect(selection(), batch_of(2, 32767), 1);
  expect(selection(), batch_of(8, 32768), 8);
  expect(selection(), batch_of(9, 65536), 1);
  expect(selection(), batch_of(9, 65537), 8);
  expect(selection(), batch_of(1, 65537), 8);
  expect(selection(), batch_of(16, 1 << 18), 8);
  expect(selection(), batch_of(17, 1 << 18), 4);
  expect(selection(), batch_of(66, 1 << 18), 2);
  expect(selection(), batch_of(67, 1 << 18), 1);
  expect(selection(), batch_of(132, 1 << 18), 1);
  expect(selection(), batch_of(133, 16384), 0);  // too few rows to select for two tokens one after the other
  expect(selection(), batch_of(133, 16385), 1);
  expect(selection(), batch_of(264, 1 << 18), 1);
  expect(selection(), batch_of(265, 1 << 18), 0);        // or for three
  expect(selection(), batch_of(132, (1 << 18) + 1), 0);  // the selection has no mark for the last row
  IndexerTopkParams params = selection();
  params.heads = 65;
  expect(params, batch_of(4, 3000), 0);
  ScoreBatch batch = batch_of(4, 3000);
  batch.group_tokens = 2;
  expect(selection(), batch, 0);
  batch = batch_of(4, 3000);
  batch.state = nullptr;
  expect(selection(), batch, 0);
  EXPECT_EQ(planned(driver, selection(), ScoreBatch{.tokens = 4}).scores, ScoreKernel::kNone);
}

TEST(SelectionPlan, HopperScoresAndSelectsFewRowsInOneKernel) {
  FakeDeviceDriver driver({FakeDevice{}});
  const SelectionPlan few = planned(driver, selection(), batch_of(4, 2000));
  EXPECT_EQ(few.scores, ScoreKernel::kWgmma);
  EXPECT_GT(few.fused_blocks, 0);
  EXPECT_GT(planned(driver, selection(), batch_of(132, 2560)).fused_blocks, 0);
  EXPECT_EQ(planned(driver, selection(), batch_of(1, 2561)).fused_blocks, 0);
  EXPECT_EQ(planned(driver, selection(), batch_of(133, 2560)).fused_blocks, 0);
  // Two tokens one after the other, where enough blocks have a second one.
  EXPECT_EQ(planned(driver, selection(), batch_of(164, 2560)).fused_blocks, 0);
  EXPECT_EQ(planned(driver, selection(), batch_of(165, 2560)).fused_blocks, 1);
  EXPECT_EQ(planned(driver, selection(), batch_of(264, 2560)).fused_blocks, 1);
  EXPECT_EQ(planned(driver, selection(), batch_of(265, 2560)).fused_blocks, 0);
}

// Blocks of one token run together or wait for each other without end.
TEST(SelectionPlan, FusedClustersHaveAPlaceEach) {
  for (const int at_once : {1, 3, 7, 14, 30}) {
    FakeDeviceDriver driver({FakeDevice{.clusters = [=](int) { return at_once; }}});
    for (std::int32_t tokens = 1; tokens < 40; ++tokens) {
      const SelectionPlan plan = planned(driver, selection(), batch_of(tokens, 1000));
      EXPECT_TRUE(plan.fused_blocks <= 1 || tokens <= at_once) << tokens << " " << at_once;
    }
  }
}

// A batch has a place to count in for each of its tokens or none.
TEST(SelectionPlan, CountsHaveAPlaceForEveryTokenOfABatch) {
  alignas(16) static std::byte region[1];
  IndexerTopkParams params = selection();
  params.keys.blocks = region;
  params.keys.table_stride = 100;
  params.q = reinterpret_cast<const bf16*>(region);
  params.step.counts.context_end = 8192;
  const auto state_of = [&](std::int32_t tokens, std::size_t scratch_bytes, std::size_t zero_bytes) {
    params.step.counts.tokens = tokens;
    const cuda::Scratch scratch(region, scratch_bytes, {region, zero_bytes});
    const auto batch = cuda::plan_scores(params, scratch);
    EXPECT_OK(batch);
    return batch.ok() && batch->state != nullptr;
  };
  constexpr std::size_t kOne = sizeof(cuda::SelectState);
  EXPECT_TRUE(state_of(7, 1 << 20, 7 * kOne));
  EXPECT_FALSE(state_of(7, 1 << 20, 7 * kOne - 1));
  EXPECT_FALSE(state_of(7, 1 << 20, 0));
  EXPECT_TRUE(state_of(7, 2 * 2048 * sizeof(float), 2 * kOne)) << "two tokens at a time";
  EXPECT_TRUE(state_of(cuda::kMostStateTokens, 4 << 20, cuda::kSelectStateBytes));
  EXPECT_FALSE(state_of(cuda::kMostStateTokens + 1, 4 << 20, cuda::kSelectStateBytes));
}

// Of what a plan of memory names, operations have what they take when the counts have theirs: with an indexer, without
// one, where rounded inputs are the largest, and with sizes that are no multiples of anything.
TEST(SelectionPlan, ScratchHasRoomForOperationsBesideCounts) {
  const auto left = [](const StepShapes& shapes) {
    const cuda::ScratchParts parts = cuda::scratch_parts(static_cast<std::size_t>(cuda_scratch_bytes(shapes)));
    EXPECT_EQ(parts.zero_bytes, static_cast<std::size_t>(cuda::kSelectStateBytes));
    EXPECT_EQ(parts.operation_bytes % alignof(cuda::SelectState), 0U);
    return static_cast<std::int64_t>(parts.operation_bytes);
  };
  StepShapes shapes{.max_tokens = 1, .max_context_tokens = 4096, .heads = 64, .window = 128};
  left(shapes);
  for (const std::int32_t tokens : {1, 3, 1023, 1024, 1030, 8192}) {
    for (const std::int64_t inputs : {1, 7, 4096, 8192}) {
      StepShapes linears = shapes;
      linears.max_tokens = tokens;
      linears.linears = {{.in_features = inputs, .out_features = 4096}};
      EXPECT_GE(left(linears), tokens * inputs * std::int64_t{sizeof(bf16)}) << tokens << " " << inputs;
    }
  }
  shapes.compressed = {{.ratio = 4, .index_heads = 64, .top_k = 512}};
  for (const std::int64_t context : {4096, 4099, 1 << 20, 1 << 28}) {
    shapes.max_context_tokens = context;
    EXPECT_GE(left(shapes), context / 4 * std::int64_t{sizeof(float)}) << context;
  }
}

TEST(SelectionPlan, ScratchDividesWithoutLoss) {
  constexpr auto kStates = static_cast<std::size_t>(cuda::kSelectStateBytes);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{5}, 2 * kStates - 1}) {
    EXPECT_EQ(cuda::scratch_parts(bytes).operation_bytes, bytes);
    EXPECT_EQ(cuda::scratch_parts(bytes).zero_bytes, 0U);
  }
  for (std::int64_t bytes = cuda::kSelectStateBytes - 20; bytes < cuda::kSelectStateBytes + 40; ++bytes) {
    const std::int64_t planned = cuda::with_states(bytes);
    const cuda::ScratchParts parts = cuda::scratch_parts(static_cast<std::size_t>(planned));
    EXPECT_GE(parts.operation_bytes, static_cast<std::size_t>(bytes)) << bytes;
    EXPECT_EQ(parts.operation_bytes + parts.zero_bytes, static_cast<std::size_t>(planned)) << bytes;
  }
}

TEST(SelectionPlan, WithoutCodeForHopperAllIsPortable) {
  FakeDeviceDriver driver({FakeDevice{.sm90a_code = false}});
  for (const std::int32_t tokens : {1, 4, 300}) {
    for (const std::int32_t rows : {600, 2000, 100000}) {
      const SelectionPlan plan = planned(driver, selection(), batch_of(tokens, rows));
      EXPECT_EQ(plan.scores, ScoreKernel::kPortable);
      EXPECT_EQ(plan.fused_blocks, 0);
      EXPECT_EQ(plan.counted_blocks, 0);
      EXPECT_EQ(plan.slow, SlowPath::kNoSm90a);
    }
  }
}

TEST(SelectionPlan, OddBlocksAreSlowAndSaySo) {
  FakeDeviceDriver driver({FakeDevice{}});
  const SelectionPlan plan = planned(driver, selection(48), batch_of(4, 2000));
  EXPECT_EQ(plan.scores, ScoreKernel::kPortable);
  EXPECT_EQ(plan.slow, SlowPath::kSelectBlockRows);
  EXPECT_NE(cuda::slow_path_text(plan.slow).find("64"), std::string::npos);
}

TEST(SelectionPlan, FailuresOfTheDriverAreReturned) {
  FakeDeviceDriver driver({FakeDevice{.clusters_error = cudaErrorInvalidValue}});
  const auto device = CudaDevice::create(0, driver);
  ASSERT_OK(device);
  EXPECT_FALSE(plan_selection(**device, selection(), batch_of(4, 2000)).ok());
}

// An H200 runs 30 clusters that pool many rows; 28 of them were measured to be fastest.
TEST(RowPlan, ClustersOfAnH200AreAsMeasured) {
  for (std::int32_t tokens = 1; tokens < 2000; ++tokens) {
    EXPECT_EQ(cuda::pool_cluster_tokens(tokens, 30), std::clamp((tokens + 27) / 28, 1, 32)) << tokens;
  }
  EXPECT_EQ(cuda::pool_cluster_tokens(5, 0), 5);  // a device without a place for two
}

// Captured steps have a shape that ends where the kernel for few rows does, of four tokens a row.
TEST(SelectionPlan, FewRowsHaveAContextOfTheirOwn) {
  constexpr std::int32_t kContext = cuda::kMostFewRows * 4;
  EXPECT_EQ(context_bucket(kContext), kContext);
  EXPECT_GT(context_bucket(kContext + 1), kContext);
}

TEST(SlowPathReport, TellsEachReasonOnce) {
  std::vector<std::string> told;
  cuda::SlowPathReport report([&](std::string_view text) { told.emplace_back(text); });
  for (int i = 0; i < 3; ++i) {
    report.tell(SlowPath::kNone);
    report.tell(SlowPath::kAttendFormat);
    report.tell(SlowPath::kAttendTopK);
  }
  ASSERT_EQ(told.size(), 2U);
  EXPECT_NE(told[0].find("fp8_ds_mla"), std::string::npos) << told[0];
  EXPECT_NE(told[1].find("1152"), std::string::npos) << told[1];
  cuda::SlowPathReport silent;
  silent.tell(SlowPath::kAttendFormat);  // nobody listens
}

// Told when the operations are made, before any of them runs.
TEST(SlowPathReport, ABuildWithoutCodeForHopperIsToldAtOnce) {
  for (const bool has_code : {false, true}) {
    FakeDeviceDriver driver({FakeDevice{.sm90a_code = has_code}});
    const auto device = CudaDevice::create(0, driver);
    ASSERT_OK(device);
    std::vector<std::string> told;
    cuda::Scratch scratch;
    const cuda::CudaOps ops(**device, nullptr, scratch, [&](std::string_view text) { told.emplace_back(text); });
    ASSERT_EQ(told.size(), has_code ? 0U : 1U);
    EXPECT_TRUE(has_code || told[0].find("90a") != std::string::npos);
  }
}

}  // namespace
}  // namespace dsv4rt::test
