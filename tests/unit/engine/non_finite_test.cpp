// NaN and infinity: in weights they are refused by name, and an input that has one does not pass for a number.
#include <cmath>

#include <gtest/gtest.h>

#include "support/changed_model.h"
#include "support/golden_case.h"

namespace dsv4rt::test {
namespace {

constexpr std::int32_t kLayers = 3;  // one of each kind
constexpr std::int32_t kTokens = 140;
constexpr WeightEncoding kEncodings[] = {WeightEncoding::kBf16, WeightEncoding::kFp8Block128, WeightEncoding::kNvfp4};

SyntheticModel model(WeightEncoding encoding) {
  return {.config = "tiny", .first_layer = 0, .layer_count = kLayers, .encoding = encoding};
}

EngineOptions options(const std::filesystem::path& checkpoint) {
  EngineOptions options;
  options.checkpoint = checkpoint;
  options.layer_count = kLayers;
  options.threads = 1;
  options.limits = {.max_sequences = 1, .max_context_tokens = kTokens, .max_step_tokens = kTokens, .pool_tokens = 0};
  return options;
}

bool finite(Bf16Bits bits) {
  return (bits & 0x7f80U) != 0x7f80U;
}

// Outputs of every layer for one sequence of x.
LayerRows outputs(Engine& engine, const std::vector<Bf16Bits>& x) {
  const StepEntry entry{engine.create_sequence().value(),
                        static_cast<std::int32_t>(x.size() / static_cast<std::size_t>(engine.config().hidden_size))};
  const Step step = engine.prepare({&entry, 1}).value();
  LayerRows rows;
  for (const LayerId layer : engine.layers()) {
    rows.emplace_back(x.size());
    EXPECT_OK(engine.forward_layer(step, layer, x.data(), rows.back().data()));
  }
  EXPECT_OK(engine.commit(step));
  EXPECT_OK(engine.release(entry.sequence));
  return rows;
}

struct BadWeight {
  WeightEncoding encoding;
  std::string tensor;
  std::size_t index;
  std::size_t value_bytes;
  std::string bytes;
  std::string value;
};

const std::vector<BadWeight>& bad_weights() {
  const std::string nan("\xc0\x7f", 2);
  const std::string infinity("\x80\x7f", 2);
  const std::string float_nan("\0\0\xc0\xff", 4);
  const std::string float_infinity("\0\0\x80\xff", 4);
  const std::string layer = "layers.1.attn.";
  static const std::vector<BadWeight> bad = {
      {WeightEncoding::kBf16, layer + "wkv.weight", 4097, 2, nan, "NaN"},
      {WeightEncoding::kBf16, layer + "wo_b.weight", 0, 2, infinity, "infinity"},
      {WeightEncoding::kBf16, layer + "q_norm.weight", 127, 2, infinity, "infinity"},
      {WeightEncoding::kBf16, layer + "kv_norm.weight", 3, 2, nan, "NaN"},
      {WeightEncoding::kBf16, layer + "attn_sink", 7, 4, float_infinity, "infinity"},
      {WeightEncoding::kBf16, layer + "compressor.ape", 9, 4, float_nan, "NaN"},
      {WeightEncoding::kBf16, layer + "compressor.wgate.weight", 5, 2, nan, "NaN"},
      {WeightEncoding::kBf16, layer + "indexer.weights_proj.weight", 1, 2, nan, "NaN"},
      {WeightEncoding::kBf16, layer + "indexer.compressor.wkv.weight", 1, 2, nan, "NaN"},
      {WeightEncoding::kFp8Block128, layer + "wq_a.weight", 16383, 1, "\x7f", "NaN"},
      {WeightEncoding::kFp8Block128, layer + "indexer.wq_b.weight", 200, 1, "\xff", "NaN"},
      {WeightEncoding::kNvfp4, layer + "wo_a.weight_scale", 33, 1, "\x7f", "NaN"},
  };
  return bad;
}

TEST(NonFiniteWeights, AreRefusedByNameOrAllowed) {
  const TempDirectory directory;
  for (const BadWeight& bad : bad_weights()) {
    SCOPED_TRACE(bad.tensor);
    write_changed(model(bad.encoding), {.tensor = bad.tensor, .byte = bad.index * bad.value_bytes, .bytes = bad.bytes},
                  directory.path());
    EngineOptions given = options(directory.path());
    const std::string tensor = bad.tensor.substr(0, bad.tensor.find("_scale"));
    EXPECT_TRUE(fails_with(Engine::create(given), StatusCode::kBadInput,
                           {tensor, bad.value + " at index " + std::to_string(bad.index), "allow_non_finite_weights",
                            directory.path().string()}));
    given.allow_non_finite_weights = true;
    if (bad.encoding == WeightEncoding::kNvfp4) {  // block scales are part of the encoding
      EXPECT_TRUE(fails_with(Engine::create(given), StatusCode::kBadInput, {tensor, "is NaN"}));
      continue;
    }
    const auto engine = make_engine(given);
    const LayerRows x = random_rows(3, 1, 8, engine->config().hidden_size);
    const LayerRows y = outputs(*engine, x[0]);
    EXPECT_TRUE(std::all_of(y[0].begin(), y[0].end(), finite)) << "another layer's weights";
  }
}

// A row of infinities, of either sign, or one among its values: NaN in every layer from that token on, whatever the
// encoding of the weights, and nothing before it.
TEST(NonFiniteInputs, BecomeNanInEveryEncodingAndLayer) {
  for (const WeightEncoding encoding : kEncodings) {
    const auto engine = make_engine(options(model(encoding).directory()));
    const std::int64_t hidden = engine->config().hidden_size;
    for (const Bf16Bits value : {Bf16Bits{0x7f80}, Bf16Bits{0xff80}, Bf16Bits{0x7fc0}}) {
      for (const std::int64_t values : {hidden, std::int64_t{1}}) {
        SCOPED_TRACE(testing::Message() << "encoding " << static_cast<int>(encoding) << " value " << value << " times "
                                        << values);
        constexpr std::int64_t kBad = 2;
        std::vector<Bf16Bits> x = random_rows(3, 1, 6, hidden)[0];
        std::fill_n(x.begin() + kBad * hidden, values, value);
        for (const std::vector<Bf16Bits>& rows : outputs(*engine, x)) {
          const auto bad = rows.begin() + kBad * hidden;
          EXPECT_TRUE(std::all_of(rows.begin(), bad, finite));
          EXPECT_TRUE(std::none_of(bad, rows.end(), finite));
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4rt::test
