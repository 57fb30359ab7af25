// What the comparison accepts and what it refuses, on recorded values made from the engine's own.
#include "tools/lib/trace_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/golden_case.h"

namespace dsv4rt::test {
namespace {

// A run of 40 tokens of a CSA layer, and a trace that records exactly what it gave.
class TraceCheck : public testing::Test {
 protected:
  static constexpr std::int64_t kTokens = 40;
  static constexpr int kLayer = 1;

  TraceCheck() : golden_(GoldenCase::open("tiny-bf16", kLayer, 1)) {
    trace_ = golden_.trace;
    trace_.prefill_tokens = kTokens;
    trace_.decode_tokens = 0;
    engine_ = make_engine(golden_.options());
    auto run = run_trace(*engine_, trace_, {}, {});
    EXPECT_OK(run);
    run_ = std::move(run).value();
    EngineInspector inspector(*engine_);
    LayerTrace& layer = trace_.layers[0];
    layer.output = run_.layers[0].output;
    layer.output->resize(kTokens * 128);
    layer.compressed_kv = to_bf16s(inspector.paged_values(LayerId(kLayer), CacheRole::kCsaKv, run_.sequence).value());
    layer.index_k = to_bf16s(inspector.paged_values(LayerId(kLayer), CacheRole::kIndexK, run_.sequence).value());
    layer.window_kv_last = to_bf16s(inspector.window_values(LayerId(kLayer), run_.sequence).value());
    layer.topk = run_.layers[0].topk_indices;
    layer.top_k = run_.layers[0].top_k;
    layer.topk_margin = std::vector<float>(kTokens, 1.0F);
  }

  static std::vector<bf16> to_bf16s(const std::vector<float>& values) {
    std::vector<bf16> bits;
    for (const float value : values) bits.push_back(to_bf16(value));
    return bits;
  }

  LayerCheck check(const TraceTolerance& tolerance = TraceTolerance::bf16_linears()) {
    auto checks = check_trace(*engine_, trace_, run_, tolerance);
    EXPECT_OK(checks);
    return checks->at(0);
  }
  LayerTrace& recorded() { return trace_.layers[0]; }
  // Distance to the next E4M3 code of an FP8 value, from its own magnitude.
  static float code_step(bf16 value) { return std::ldexp(1.0F, std::ilogb(std::fabs(to_float(value))) - 3); }

  GoldenCase golden_;
  AttentionTrace trace_;
  std::unique_ptr<Engine> engine_;
  TraceRun run_;
};

TEST_F(TraceCheck, EqualValuesMatchExactly) {
  const LayerCheck layer = check({.output_relative_error = 0, .row_code_fraction = 0, .selection_token_fraction = 0});
  EXPECT_TRUE(layer.failures.empty()) << layer.failures.front();
  EXPECT_EQ(layer.relative_error, 0.0);
  EXPECT_NEAR(layer.cosine, 1.0, 1e-12);
  EXPECT_EQ(layer.compared_tokens, kTokens);
  EXPECT_EQ(layer.compressed_kv->values, kTokens / 4 * kHeadDim);
  EXPECT_EQ(layer.index_k->values, kTokens / 4 * kIndexHeadDim);
  EXPECT_EQ(layer.window_kv->values, kTokens * kHeadDim);
  EXPECT_EQ(layer.selection_differs, 0);
}

TEST_F(TraceCheck, RelativeErrorIsTheL2NormOfTheDifference) {
  for (bf16& value : *recorded().output) value = to_bf16(to_float(value) * 0.5F);  // exact: out = 2 * recorded
  const LayerCheck layer = check();
  EXPECT_NEAR(layer.relative_error, 1.0, 1e-6);
  EXPECT_NEAR(layer.cosine, 1.0, 1e-12);
  ASSERT_EQ(layer.failures.size(), 1U);
}

TEST_F(TraceCheck, NanFails) {
  (*recorded().output)[5] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(check().failures.empty());
}

TEST_F(TraceCheck, NanInARowIsMoreThanOneCodeOff) {
  (*recorded().compressed_kv)[0] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  const LayerCheck layer = check();
  EXPECT_EQ(layer.compressed_kv->further_off, 1);
  EXPECT_FALSE(layer.failures.empty());
}

TEST_F(TraceCheck, OneCodeOffCountsAndTwoFail) {
  auto& rows = *recorded().window_kv_last;
  const float step = code_step(rows[0]);
  const bf16 before = rows[0];
  rows[0] = to_bf16(to_float(before) + step);
  LayerCheck layer = check();
  EXPECT_EQ(layer.window_kv->off_by_one_code, 1);
  EXPECT_EQ(layer.window_kv->further_off, 0);
  EXPECT_TRUE(layer.failures.empty());
  rows[0] = to_bf16(to_float(before) + 4 * step);
  layer = check();
  EXPECT_EQ(layer.window_kv->further_off, 1);
  EXPECT_FALSE(layer.failures.empty());
}

// A rotated value is judged by its pair's length: near zero it moves by many of its own codes when the
// length moves by one.
TEST_F(TraceCheck, RotatedValuesAreJudgedByTheirPair) {
  auto& rows = *recorded().window_kv_last;
  // The pair of the window's rows that is most unlike: one value near zero, the other not.
  std::size_t small = 0;
  float least = 1;
  for (std::size_t row = 0; row < rows.size(); row += kHeadDim) {
    for (std::size_t i = row + kNopeDim; i < row + kHeadDim; ++i) {
      const float other = std::fabs(to_float(rows[i ^ 1]));
      const float ratio = std::fabs(to_float(rows[i])) / other;
      if (other > 0 && ratio < least) {
        least = ratio;
        small = i;
      }
    }
  }
  ASSERT_LT(least, 1.0F / 64);
  const float large = std::fabs(to_float(rows[small ^ 1]));
  const float step = std::ldexp(1.0F, std::ilogb(std::sqrt(2.0F) * large) - 7);
  const float value = to_float(rows[small]);
  ASSERT_GT(step, std::fabs(value) / 4) << "the step must be many of the value's own codes";

  rows[small] = to_bf16(value + step * 0.9F);
  LayerCheck layer = check();
  EXPECT_EQ(layer.window_kv->off_by_one_code, 1);
  EXPECT_EQ(layer.window_kv->further_off, 0);
  EXPECT_TRUE(layer.failures.empty());

  rows[small] = to_bf16(value + step * 2);
  layer = check();
  EXPECT_EQ(layer.window_kv->further_off, 1);
  EXPECT_FALSE(layer.failures.empty());

  // The larger value of a pair has the same step: two of it fail.
  rows[small] = to_bf16(value);
  rows[small ^ 1] = to_bf16(to_float(rows[small ^ 1]) + std::copysign(2.5F * step, to_float(rows[small ^ 1])));
  EXPECT_EQ(check().window_kv->further_off, 1);
}

// E2M1 in blocks of 32 that share a scale: the block's largest value moves by half its power of two.
TEST_F(TraceCheck, IndexKeysAreJudgedByTheirBlock) {
  auto& keys = *recorded().index_k;
  bf16* const largest = std::max_element(
      keys.data(), keys.data() + 32, [](bf16 a, bf16 b) { return std::fabs(to_float(a)) < std::fabs(to_float(b)); });
  const float value = to_float(*largest);
  ASSERT_NE(value, 0);
  const float step = std::copysign(std::ldexp(1.0F, std::ilogb(value) - 1), value);
  *largest = to_bf16(value + step);
  LayerCheck layer = check();
  EXPECT_EQ(layer.index_k->off_by_one_code, 1);
  EXPECT_EQ(layer.index_k->further_off, 0);
  EXPECT_TRUE(layer.failures.empty());
  layer = check({.output_relative_error = 0, .row_code_fraction = 0, .selection_token_fraction = 0});
  ASSERT_EQ(layer.failures.size(), 1U);
  EXPECT_NE(layer.failures[0].find("index_k: 0.07"), std::string::npos) << layer.failures[0];  // 1 of 1280
  *largest = to_bf16(value + 4 * step);
  EXPECT_EQ(check().index_k->further_off, 1);
}

TEST_F(TraceCheck, RowsOfAnotherCountAreRefused) {
  recorded().compressed_kv->resize(9 * kHeadDim);
  const LayerCheck layer = check();
  EXPECT_EQ(layer.compressed_kv->further_off, layer.compressed_kv->values);
  EXPECT_FALSE(layer.failures.empty());
}

// A selection may differ where the margin is small; its token's output is then not compared.
TEST_F(TraceCheck, NearlyTiedSelectionsAreExcusedAndLeftOut) {
  auto& topk = *recorded().topk;
  const std::size_t token = kTokens - 1;
  topk[token * static_cast<std::size_t>(recorded().top_k)] = 1000;
  for (std::size_t i = 0; i < 128; ++i) (*recorded().output)[token * 128 + i] = to_bf16(1e6F);
  LayerCheck layer = check();
  EXPECT_EQ(layer.selection_differs, 1);
  EXPECT_EQ(layer.selection_unexplained, 1);
  EXPECT_EQ(layer.failures.size(), 1U);

  (*recorded().topk_margin)[token] = 0.01F;
  layer = check();
  EXPECT_EQ(layer.selection_unexplained, 0);
  EXPECT_TRUE(layer.failures.empty()) << layer.failures.front();
  EXPECT_EQ(layer.compared_tokens, kTokens - 1);
}

TEST_F(TraceCheck, TooManyNearTiesFail) {
  auto& topk = *recorded().topk;
  for (std::size_t token = 10; token < 13; ++token) {
    topk[token * static_cast<std::size_t>(recorded().top_k)] = 1000;
    (*recorded().topk_margin)[token] = 0.01F;
  }
  const LayerCheck layer = check();
  EXPECT_EQ(layer.selection_differs, 3);
  EXPECT_EQ(layer.failures.size(), 1U);  // 7.5 % of the tokens; 5 % allowed
}

TEST_F(TraceCheck, WithoutMarginsNoDifferenceIsExcused) {
  recorded().topk_margin.reset();
  (*recorded().topk)[20 * static_cast<std::size_t>(recorded().top_k)] = 1000;
  EXPECT_EQ(check().selection_unexplained, 1);
}

TEST_F(TraceCheck, WhatIsNotRecordedIsNotCompared) {
  recorded().compressed_kv.reset();
  recorded().index_k.reset();
  recorded().window_kv_last.reset();
  recorded().topk.reset();
  const LayerCheck layer = check();
  EXPECT_TRUE(layer.output_compared);
  EXPECT_FALSE(layer.selection_compared);
  EXPECT_FALSE(layer.compressed_kv || layer.index_k || layer.window_kv);
  EXPECT_TRUE(layer.failures.empty());
}

TEST_F(TraceCheck, ALayerThatRecordsNothingIsRefused) {
  recorded().output.reset();
  recorded().compressed_kv.reset();
  recorded().index_k.reset();
  recorded().window_kv_last.reset();
  recorded().topk.reset();
  EXPECT_TRUE(fails_with(check_trace(*engine_, trace_, run_, TraceTolerance::bf16_linears()), StatusCode::kBadInput,
                         {"trace.safetensors: layer 1 has no recorded tensor to compare with"}));
}

// Rows of other formats hold other values by design: why they are not compared is said.
TEST_F(TraceCheck, RowsOfOtherFormatsAreNotCompared) {
  EngineOptions options = golden_.options();
  options.row_format = RowFormat::kBf16;
  options.index_format = IndexKeyFormat::kFp8;
  engine_ = make_engine(options);
  auto run = run_trace(*engine_, trace_, {}, {});
  ASSERT_OK(run);
  run_ = std::move(run).value();
  const LayerCheck layer = check();
  EXPECT_FALSE(layer.compressed_kv || layer.index_k || layer.window_kv || layer.selection_compared);
  EXPECT_TRUE(layer.output_compared);
  EXPECT_EQ(layer.not_compared,
            (std::vector<std::string>{"compressed_kv: the cache's row format is not the recorded fp8_ds_mla",
                                      "index_k: the cache's index key format is not the recorded mxfp4",
                                      "window_kv_last: the cache's row format is not the recorded fp8_ds_mla",
                                      "topk: the cache's index key format is not the recorded mxfp4"}));
}

TEST_F(TraceCheck, RunOptionsOutOfRangeNameTheOption) {
  EXPECT_TRUE(fails_with(run_trace(*engine_, trace_, {.chunk_tokens = -1, .decode_from = -1}, {}),
                         StatusCode::kInvalidArgument, {"chunk -1"}));
  EXPECT_TRUE(fails_with(run_trace(*engine_, trace_, {.chunk_tokens = 0, .decode_from = 41}, {}),
                         StatusCode::kInvalidArgument, {"decode-from 41", "40"}));
}

TEST_F(TraceCheck, ProgressCountsEveryStep) {
  ASSERT_OK(engine_->release(run_.sequence));
  std::vector<std::int64_t> done;
  const auto run = run_trace(*engine_, trace_, {.chunk_tokens = 16, .decode_from = 37},
                             [&](std::int64_t tokens, std::int64_t total) {
                               EXPECT_EQ(total, kTokens);
                               done.push_back(tokens);
                             });
  ASSERT_OK(run);
  EXPECT_EQ(done, (std::vector<std::int64_t>{16, 32, 37, 38, 39, 40}));
  EXPECT_EQ(run->steps, 6);
  EXPECT_EQ(run->prefill_tokens, 37);
  EXPECT_EQ(run->decode_tokens, 3);
}

}  // namespace
}  // namespace dsv4rt::test
