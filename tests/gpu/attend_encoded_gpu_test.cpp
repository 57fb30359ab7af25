// Attention whose outputs leave encoded, on the GPU: with every kernel codes and scales are those of the outputs that
// it leaves otherwise.
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/kernels/attend/plan.h"
#include "gpu/support/attend_gpu.h"
#include "layout/codec_e4m3.h"
#include "layout/rounding.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {
namespace {

using cuda::AttendPlan;

class EncodedOutputs : public AttendGpuTest {
 protected:
  struct Step {
    AttendShape shape;
    std::vector<AttendPart> parts;
    std::int32_t padding = 0;
    std::optional<float> query_eps = std::nullopt;
    float query_scale = 1.0F;
    std::int32_t scaled_head = -1;
  };

  static constexpr std::uint8_t kPoisonCode = 0x5a;
  static constexpr float kPoisonScale = -3.0F;
  static constexpr std::size_t kBeyond = 256;  // bytes and scales behind the arrays, to be left alone

  // serves: of the plan, that the kernel meant takes the step.
  static void expect_encoded(const Step& step, const std::function<bool(const AttendPlan&)>& serves) {
    Setup setup = setup_for(step.shape, step.parts);
    ASSERT_TRUE(serves(plan_of(setup, step.parts, step.padding))) << "another kernel serves this step";
    setup.query_scale = step.query_scale;
    setup.scaled_head = step.scaled_head;
    const AttendInputs inputs = inputs_of(setup, step.parts, step.padding);
    const DeviceArray<std::byte> blocks(gpu(), setup.pool.bytes);
    const DeviceArray<std::int32_t> table(gpu(), setup.pool.table);
    const AttendArrays arrays(gpu(), inputs, setup.pool, blocks.data(), table.data());
    AttendParams params = arrays.params;
    params.query_eps = step.query_eps;
    ASSERT_OK(gpu().ops().attend(params));
    std::vector<bf16> values;
    ASSERT_OK(arrays.output(values));

    const std::int32_t tokens = inputs.counts.tokens;
    const std::int64_t width = std::int64_t{step.shape.heads} * kHeadDim;
    const std::int64_t row_blocks = width / kEncodedBlockValues;
    const std::int32_t stride = encoded_scale_stride(tokens);
    const auto code_count = static_cast<std::size_t>(tokens * width);
    const auto scale_count = static_cast<std::size_t>(row_blocks * stride);
    const DeviceArray<std::uint8_t> codes(gpu(), std::vector<std::uint8_t>(code_count + kBeyond, kPoisonCode));
    const DeviceArray<float> scales(gpu(), std::vector<float>(scale_count + kBeyond, kPoisonScale));
    params.encoded = EncodedRows{codes.data(), width, scales.data(), stride};
    ASSERT_OK(gpu().ops().attend(params));
    ASSERT_OK(gpu().synchronize());
    const std::vector<std::uint8_t> found_codes = codes.download();
    const std::vector<float> found_scales = scales.download();

    for (std::size_t i = 0; i < kBeyond; ++i) {
      ASSERT_EQ(found_codes[code_count + i], kPoisonCode);
      ASSERT_EQ(found_scales[scale_count + i], kPoisonScale);
    }
    std::vector<float> expected(kEncodedBlockValues);
    for (std::int32_t token = 0; token < tokens; ++token) {
      for (std::int64_t block = 0; block < row_blocks; ++block) {
        const auto first = static_cast<std::size_t>(token * width + block * kEncodedBlockValues);
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = to_float(values[first + i]);
        round_activation_fp8(expected.data(), expected.size());
        const float scale = found_scales[static_cast<std::size_t>(block * stride + token)];
        ASSERT_GT(scale, 0.0F) << "token " << token << " block " << block;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const float value = decode_e4m3(found_codes[first + i]) * scale;
          ASSERT_TRUE(value == expected[i] || (std::isnan(value) && std::isnan(expected[i])))
              << "token " << token << " head " << block / 4 << " value " << block % 4 * 128 + static_cast<int>(i)
              << ": " << value << " for " << expected[i];
        }
      }
    }
    for (std::int64_t block = 0; block < row_blocks; ++block) {  // between the rows of scales
      for (std::int32_t token = tokens; token < stride; ++token) {
        ASSERT_EQ(found_scales[static_cast<std::size_t>(block * stride + token)], kPoisonScale);
      }
    }
  }

  static bool in_runs(const AttendPlan& plan) { return plan.runs.has_value(); }
  static bool decoded(const AttendPlan& plan) { return plan.decoded && !plan.dense; }
  static bool dense(const AttendPlan& plan) { return plan.dense.has_value(); }
  static bool even(const AttendPlan& plan) { return plan.warpgroup && plan.warpgroup->even; }
  static bool portable(const AttendPlan& plan) { return plan.portable.has_value(); }
  // Tokens by clusters of so many blocks, packed rows.
  static std::function<bool(const AttendPlan&)> clusters_of(int blocks) {
    return [blocks](const AttendPlan& plan) {
      return plan.warpgroup && !plan.warpgroup->even && !plan.dense && !plan.decoded &&
             plan.warpgroup->cluster_blocks == blocks;
    };
  }
};

// So little work that tools can follow every access.
TEST_F(EncodedOutputs, OfFewTokens) {
  expect_encoded({.shape = {.heads = 64, .ratio = 4, .top_k = 64}, .parts = {{0, 250, 60}, {1, 126, 30}}, .padding = 2},
                 clusters_of(1));
  expect_encoded({.shape = {.heads = 64, .ratio = 4, .top_k = 64}, .parts = {{0, 1250, 40}}}, clusters_of(2));
  expect_encoded({.shape = {.heads = 64, .ratio = 128}, .parts = {{0, 200, 140}}}, in_runs);
}

// The same of a prompt, for tools that do not take a warp's lanes for unordered (racecheck does).
TEST_F(EncodedOutputs, OfAShortPrompt) {
  expect_encoded({.shape = {.heads = 128, .ratio = 4, .top_k = 1024}, .parts = {{0, 4300, 85}, {1, 0, 5}}}, decoded);
}

TEST_F(EncodedOutputs, OfRuns) {
  for (const std::int32_t ratio : {0, 128}) {
    for (const std::optional<float> eps : {std::optional<float>{}, std::optional(1e-6F)}) {
      SCOPED_TRACE("ratio " + std::to_string(ratio) + (eps ? " with the norm of queries" : ""));
      expect_encoded({.shape = {.heads = 64, .ratio = ratio},
                      .parts = {{0, 0, 333}, {1, 64, 5}, {2, 1000, 500}},
                      .padding = 3,
                      .query_eps = eps},
                     in_runs);
      expect_encoded({.shape = {.heads = 128, .ratio = ratio}, .parts = {{0, 1, 500}}, .query_eps = eps}, in_runs);
    }
  }
}

TEST_F(EncodedOutputs, OfPrompts) {
  for (const std::int32_t heads : {64, 128, 40}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    expect_encoded({.shape = {.heads = heads, .ratio = 4, .top_k = 512}, .parts = {{0, 131, 900}}, .padding = 5},
                   decoded);
  }
  expect_encoded({.shape = {.heads = 64, .ratio = 4, .top_k = 512},
                  .parts = {{3, 1201, 700}, {0, 0, 333}, {5, 64, 1}, {1, 2047, 500}},
                  .query_eps = 1e-6F},
                 decoded);
}

// Heads whose weights need a shift are taken again: the second outputs are the ones that stay.
TEST_F(EncodedOutputs, OfTwoRounds) {
  for (const std::int32_t exponent : {4, -6}) {
    SCOPED_TRACE("exponent " + std::to_string(exponent));
    const AttendShape shape{.heads = 64, .ratio = 4, .top_k = 512, .compressed_exponent = exponent};
    expect_encoded({.shape = shape, .parts = {{0, 131, 900}}}, decoded);
    expect_encoded({.shape = shape, .parts = decode(100, 3000)}, clusters_of(1));
    expect_encoded({.shape = shape, .parts = decode(50, 3000)}, clusters_of(2));
    expect_encoded({.shape = {.heads = 64, .ratio = 128, .compressed_exponent = exponent}, .parts = {{0, 3000, 400}}},
                   in_runs);
  }
}

TEST_F(EncodedOutputs, OfDecodeSteps) {
  const AttendShape shape{.heads = 64, .ratio = 4, .top_k = 512};
  expect_encoded({.shape = shape, .parts = decode(100, 30000), .padding = 3}, clusters_of(1));
  expect_encoded({.shape = shape, .parts = decode(50, 30000), .padding = 1}, clusters_of(2));
  expect_encoded({.shape = shape, .parts = decode(20, 30000)}, clusters_of(4));
  expect_encoded({.shape = shape, .parts = decode(3, 30000)}, clusters_of(8));
  for (const std::int32_t tokens : {100, 50, 20, 3}) {
    expect_encoded({.shape = {.heads = 64, .ratio = 128}, .parts = decode(tokens, 60000)},
                   [](const AttendPlan& plan) { return plan.warpgroup && !plan.dense; });
  }
}

// Kernels that leave values, which another one encodes.
TEST_F(EncodedOutputs, OfOtherKernels) {
  expect_encoded({.shape = {.heads = 64, .ratio = 4, .top_k = 1024}, .parts = decode(136, 30000)}, even);
  expect_encoded({.shape = {.heads = 64, .ratio = 128}, .parts = decode(40, 200000), .padding = 1}, dense);
  expect_encoded({.shape = {.heads = 64, .ratio = 128}, .parts = {{0, 200000, 100}}}, dense);
  expect_encoded(
      {.shape = {.format = RowFormat::kBf16, .heads = 64, .ratio = 4, .top_k = 512}, .parts = decode(5, 900)},
      portable);
}

// Values that are no numbers, and blocks of zeros, have the codes that rounding gives them.
TEST_F(EncodedOutputs, OfNoNumbers) {
  const float nan = std::nanf("");
  for (const float scale : {nan, 0.0F}) {
    expect_encoded({.shape = {.heads = 64, .ratio = 4, .top_k = 512},
                    .parts = decode(100, 3000),
                    .query_scale = scale,
                    .scaled_head = 21},
                   clusters_of(1));
    expect_encoded({.shape = {.heads = 64, .ratio = 4, .top_k = 512},
                    .parts = {{0, 131, 900}},
                    .query_scale = scale,
                    .scaled_head = 9},
                   decoded);
    expect_encoded(
        {.shape = {.heads = 64, .ratio = 128}, .parts = {{0, 0, 500}}, .query_scale = scale, .scaled_head = 50},
        in_runs);
  }
}

TEST_F(EncodedOutputs, WhatIsRefused) {
  const std::vector<AttendPart> parts = decode(5, 900);
  Setup setup = setup_for({.heads = 64, .ratio = 4, .top_k = 512}, parts);
  const AttendInputs inputs(setup.shape, setup.bank, setup.slots, parts);
  const DeviceArray<std::byte> blocks(gpu(), setup.pool.bytes);
  const DeviceArray<std::int32_t> table(gpu(), setup.pool.table);
  const AttendArrays arrays(gpu(), inputs, setup.pool, blocks.data(), table.data());
  const std::int64_t width = 64 * kHeadDim;
  const std::int32_t stride = encoded_scale_stride(5);
  const DeviceArray<std::uint8_t> codes(gpu(), std::vector<std::uint8_t>(static_cast<std::size_t>(5 * width) + 16));
  const DeviceArray<float> scales(gpu(), std::vector<float>(static_cast<std::size_t>(width / 128 * stride) + 4));
  const auto status = [&](const EncodedRows& rows) {
    AttendParams params = arrays.params;
    params.encoded = rows;
    return gpu().ops().attend(params);
  };
  EXPECT_OK(status({codes.data(), width, scales.data(), stride}));
  const std::pair<EncodedRows, const char*> refused[] = {
      {{codes.data() + 1, width, scales.data(), stride}, "encoded.codes"},
      {{nullptr, width, scales.data(), stride}, "encoded.codes"},
      {{codes.data(), width, scales.data() + 1, stride}, "encoded.scales"},
      {{codes.data(), width - 128, scales.data(), stride}, "encoded.width"},
      {{codes.data(), width, scales.data(), stride - 4}, "encoded.scale_stride"},
      {{codes.data(), width, scales.data(), stride + 2}, "encoded.scale_stride"},
  };
  for (const auto& [rows, field] : refused) {
    const Status found = status(rows);
    EXPECT_EQ(found.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(found.message().find(field), std::string::npos) << found.to_string();
  }
  EXPECT_OK(gpu().synchronize());
}

}  // namespace
}  // namespace dsv4rt::test
