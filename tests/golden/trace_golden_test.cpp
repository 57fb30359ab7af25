// The recorded traces: every output, cached row and selection as the published reference computed them.
// The traces run well past the window (704 and 393 tokens; the window has 128), where a wrong rotary
// base or YaRN setting of one layer shows.
#include <algorithm>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "tools/lib/trace_check.h"
#include "tools/lib/trace_run.h"

namespace dsv4rt::test {
namespace {

struct CheckedRun {
  std::unique_ptr<Engine> engine;
  TraceRun run;
};

CheckedRun run_golden(const GoldenCase& golden, const TraceRunOptions& options = {}) {
  CheckedRun checked;
  checked.engine = make_engine(golden.options());
  auto run = run_trace(*checked.engine, golden.trace, options, {});
  EXPECT_OK(run);
  checked.run = std::move(run).value();
  return checked;
}

std::vector<LayerCheck> check(const CheckedRun& checked, const AttentionTrace& trace) {
  auto checks = check_trace(*checked.engine, trace, checked.run, default_tolerance(*checked.engine));
  EXPECT_OK(checks);
  return std::move(checks).value();
}

void expect_rows_match(const std::optional<RowComparison>& rows, bool recorded, const char* name) {
  ASSERT_EQ(rows.has_value(), recorded) << name;
  if (!rows) return;
  EXPECT_GT(rows->values, 0) << name;
  EXPECT_EQ(rows->further_off, 0) << name;
  EXPECT_LE(static_cast<double>(rows->off_by_one_code), 0.005 * static_cast<double>(rows->values)) << name;
}

class TraceGolden : public testing::TestWithParam<const char*> {};

TEST_P(TraceGolden, MatchesTheReferenceWellPastTheWindow) {
  const GoldenCase golden = GoldenCase::open(GetParam());
  ASSERT_GT(golden.tokens(), 2 * golden.config.sliding_window);
  const bool fp8 = std::string(GetParam()) == "tiny-fp8";
  const CheckedRun checked = run_golden(golden);
  const TraceTolerance tolerance = default_tolerance(*checked.engine);
  EXPECT_DOUBLE_EQ(tolerance.output_relative_error, fp8 ? 1e-2 : 4e-3);
  EXPECT_DOUBLE_EQ(tolerance.row_code_fraction, 0.005);

  const auto checks = check(checked, golden.trace);
  ASSERT_EQ(checks.size(), golden.trace.layers.size());
  for (std::size_t i = 0; i < checks.size(); ++i) {
    const LayerCheck& layer = checks[i];
    const LayerTrace& recorded = golden.trace.layers[i];
    SCOPED_TRACE("layer " + std::to_string(layer.layer.value));
    EXPECT_TRUE(layer.failures.empty()) << layer.failures.front();
    EXPECT_TRUE(layer.not_compared.empty()) << layer.not_compared.front();
    ASSERT_TRUE(layer.output_compared);
    EXPECT_LE(layer.relative_error, tolerance.output_relative_error);
    EXPECT_GT(layer.relative_error, 0.0);  // another evaluation order: equality would mean nothing was compared
    EXPECT_GE(layer.cosine, 0.9999);
    EXPECT_GE(layer.compared_tokens, golden.tokens() * 95 / 100);
    expect_rows_match(layer.window_kv, recorded.window_kv_last.has_value(), "window_kv");
    expect_rows_match(layer.compressed_kv, recorded.compressed_kv.has_value(), "compressed_kv");
    expect_rows_match(layer.index_k, recorded.index_k.has_value(), "index_k");
    EXPECT_EQ(layer.selection_compared, recorded.topk.has_value());
    EXPECT_EQ(layer.selection_unexplained, 0);
  }
}

TEST_P(TraceGolden, DecodeFromAnyPositionGivesTheSameOutputs) {
  const GoldenCase golden = GoldenCase::open(GetParam());
  const CheckedRun whole = run_golden(golden);
  for (const std::int64_t decode_from : {golden.tokens(), std::int64_t{130}}) {
    const CheckedRun other = run_golden(golden, {.chunk_tokens = 0, .decode_from = decode_from});
    for (std::size_t i = 0; i < whole.run.layers.size(); ++i) {
      const auto& a = whole.run.layers[i].output;
      const auto& b = other.run.layers[i].output;
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end(), [](bf16 x, bf16 y) { return x.bits == y.bits; }))
          << "decode from " << decode_from << ", layer " << i;
    }
  }
}

TEST_P(TraceGolden, ACorruptedRecordIsNoticed) {
  const GoldenCase golden = GoldenCase::open(GetParam());
  const CheckedRun checked = run_golden(golden);
  const auto negate = [](bf16& value) { value.bits ^= 0x8000; };
  const auto failures = [&](auto&& corrupt, std::size_t layer) {
    AttentionTrace trace = golden.trace;
    corrupt(trace.layers[layer]);
    return check(checked, trace)[layer].failures;
  };
  const auto mentions = [](const std::vector<std::string>& texts, const std::string& word) {
    return std::any_of(texts.begin(), texts.end(),
                       [&](const std::string& text) { return text.find(word) != std::string::npos; });
  };
  for (std::size_t i = 0; i < golden.trace.layers.size(); ++i) {
    const LayerTrace& recorded = golden.trace.layers[i];
    SCOPED_TRACE("layer " + std::to_string(i));
    // One token of several hundred: its outputs have the other sign.
    const auto output = failures(
        [&](LayerTrace& l) { std::for_each_n(l.output->begin() + 300 * golden.hidden(), golden.hidden(), negate); }, i);
    EXPECT_TRUE(mentions(output, "output: relative error"));
    const auto window = failures([&](LayerTrace& l) { (*l.window_kv_last)[1000].bits ^= 0x0100; }, i);
    EXPECT_TRUE(mentions(window, "window_kv_last: 1 values differ by more than one code"));
    if (recorded.compressed_kv) {
      const auto rows = failures([&](LayerTrace& l) { l.compressed_kv->back().bits ^= 0x0100; }, i);
      EXPECT_TRUE(mentions(rows, "compressed_kv: 1 values differ by more than one code"));
    }
    if (recorded.index_k) {
      const auto keys = failures([&](LayerTrace& l) { (*l.index_k)[77] = to_bf16(1000.0F); }, i);
      EXPECT_TRUE(mentions(keys, "index_k: "));
    }
    if (recorded.topk) {
      // The last token with a clear margin: its first selected row becomes one it did not select.
      const auto selection = failures(
          [&](LayerTrace& l) {
            for (std::size_t t = l.topk_margin->size(); t-- > 0;) {
              if ((*l.topk_margin)[t] < 0.05F) continue;
              auto* first = l.topk->data() + t * static_cast<std::size_t>(l.top_k);
              std::int32_t other = 0;
              while (std::find(first, first + l.top_k, other) != first + l.top_k) ++other;
              *first = other;
              return;
            }
          },
          i);
      EXPECT_TRUE(mentions(selection, "topk: 1 tokens select other rows although the recorded margin is clear"));
    }
  }
}

TEST_P(TraceGolden, ManyOffByOneCodesFailToo) {
  const GoldenCase golden = GoldenCase::open(GetParam());
  const CheckedRun checked = run_golden(golden);
  AttentionTrace trace = golden.trace;
  // The bf16 tail of 1 % of the rows' values moved by one BF16 step.
  auto& rows = *trace.layers[0].window_kv_last;
  for (std::size_t i = kNopeDim; i < rows.size(); i += 64) rows[i].bits ^= 1;
  const auto checks = check(checked, trace);
  ASSERT_FALSE(checks[0].failures.empty());
  EXPECT_NE(checks[0].failures.front().find("window_kv_last: "), std::string::npos) << checks[0].failures.front();
}

TEST_P(TraceGolden, OtherCacheFormatsReportWhatCannotBeCompared) {
  const GoldenCase golden = GoldenCase::open(GetParam());
  EngineOptions options = golden.options();
  options.row_format = RowFormat::kBf16;
  options.index_format = IndexKeyFormat::kFp8;
  CheckedRun checked{.engine = make_engine(options), .run = {}};
  auto run = run_trace(*checked.engine, golden.trace, {}, {});
  ASSERT_OK(run);
  checked.run = std::move(run).value();
  for (const LayerCheck& layer : check(checked, golden.trace)) {
    EXPECT_FALSE(layer.not_compared.empty());
    EXPECT_FALSE(layer.window_kv.has_value());
    EXPECT_FALSE(layer.selection_compared);
    EXPECT_LT(layer.relative_error, 0.2);  // unrounded rows: near, but not the recorded values
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, TraceGolden, testing::Values("tiny-fp8", "tiny-bf16"), [](const auto& info) {
  return std::string(info.param) == "tiny-fp8" ? "TinyFp8" : "TinyBf16";
});

}  // namespace
}  // namespace dsv4rt::test
