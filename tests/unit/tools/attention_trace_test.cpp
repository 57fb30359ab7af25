// Traces are input from outside: whatever is wrong with one, an error names file, tensor and value.
#include "tools/lib/attention_trace.h"

#include <fstream>
#include <span>

#include <gtest/gtest.h>

#include "checkpoint/safetensors_writer.h"
#include "support/golden_case.h"
#include "support/temp_directory.h"

namespace dsv4rt::test {
namespace {

using Tensors = std::vector<TensorDeclaration>;
using Metadata = std::map<std::string, std::string>;

// tiny-bf16: layer 0 has ratio 128, layer 1 ratio 4, layer 2 none; d is 128.
class AttentionTraceTest : public testing::Test {
 protected:
  static constexpr std::int64_t kTokens = 10;

  AttentionTraceTest()
      : config_(ModelConfig::from_file(golden_path("tiny-bf16") / "config.json").value()),
        path_(directory_ / "trace.safetensors") {}

  static TensorDeclaration input(int layer, std::int64_t tokens = kTokens, std::int64_t width = 128) {
    return {"layers." + std::to_string(layer) + ".input", TensorDtype::kBf16, {tokens, width}};
  }

  // Opens a file with these tensors, all zeros, as a trace of layer 1.
  Result<AttentionTrace> open(const Tensors& tensors,
                              const Metadata& metadata = {{"n_prefill", "8"}, {"n_decode", "2"}}) {
    auto writer = SafetensorsWriter::create(path_, tensors, metadata);
    EXPECT_OK(writer);
    for (const TensorDeclaration& tensor : tensors) {
      std::int64_t bytes = tensor.dtype == TensorDtype::kBf16 ? 2 : 4;
      for (const std::int64_t dimension : tensor.shape) bytes *= dimension;
      const std::vector<std::byte> zeros(static_cast<std::size_t>(bytes));
      EXPECT_OK(writer->write(tensor.name, zeros));
    }
    EXPECT_OK(writer->finish());
    return AttentionTrace::open(path_, config_, LayerId(1), LayerId(1));
  }

  TempDirectory directory_;
  ModelConfig config_;
  std::filesystem::path path_;
};

TEST_F(AttentionTraceTest, ReadsEveryFieldOfTheLayersAskedFor) {
  const auto trace =
      AttentionTrace::open(golden_path("tiny-bf16") / "trace.safetensors", config_, LayerId(1), LayerId(2));
  ASSERT_OK(trace);
  EXPECT_EQ(trace->prefill_tokens, 333);
  EXPECT_EQ(trace->decode_tokens, 60);
  ASSERT_EQ(trace->layers.size(), 2U);
  EXPECT_EQ(trace->find(LayerId(0)), nullptr);
  const LayerTrace& csa = *trace->find(LayerId(1));
  EXPECT_EQ(csa.input.size(), 393U * 128);
  EXPECT_EQ(csa.compressed_kv->size(), 98U * 512);
  EXPECT_EQ(csa.index_k->size(), 98U * 128);
  EXPECT_EQ(csa.top_k, 16);
  EXPECT_EQ(csa.topk_margin->size(), 393U);
  EXPECT_EQ(csa.window_kv_last->size(), 128U * 512);
  EXPECT_FALSE(trace->find(LayerId(2))->topk.has_value());
}

TEST_F(AttentionTraceTest, InputsAloneAreEnough) {
  const auto trace = open({input(1)});
  ASSERT_OK(trace);
  EXPECT_EQ(trace->tokens(), kTokens);
  EXPECT_FALSE(trace->layers[0].output.has_value());
}

TEST_F(AttentionTraceTest, AMissingFileIsNamed) {
  EXPECT_TRUE(fails_with(AttentionTrace::open(directory_ / "nowhere.safetensors", config_, LayerId(0), LayerId(0)),
                         StatusCode::kNotFound, {"nowhere.safetensors"}));
}

TEST_F(AttentionTraceTest, AFileThatIsNoTraceIsNamed) {
  std::ofstream(path_) << "not a safetensors file at all";
  EXPECT_TRUE(fails_with(AttentionTrace::open(path_, config_, LayerId(0), LayerId(0)), StatusCode::kBadInput,
                         {"trace.safetensors"}));
}

TEST_F(AttentionTraceTest, ATruncatedTraceIsRefused) {
  std::filesystem::copy_file(golden_path("tiny-bf16") / "trace.safetensors", path_);
  std::filesystem::resize_file(path_, 100000);
  EXPECT_TRUE(fails_with(AttentionTrace::open(path_, config_, LayerId(0), LayerId(0)), StatusCode::kBadInput,
                         {"trace.safetensors"}));
}

TEST_F(AttentionTraceTest, MetadataMustBeCounts) {
  EXPECT_TRUE(fails_with(open({input(1)}, {}), StatusCode::kBadInput, {"trace.safetensors", "n_prefill", "missing"}));
  EXPECT_TRUE(fails_with(open({input(1)}, {{"n_prefill", "8"}}), StatusCode::kBadInput, {"n_decode", "missing"}));
  for (const char* value : {"", "-1", "1e3", "10 ", " 10", "0x10", "8.0", "16777217", "99999999999999999999"}) {
    EXPECT_TRUE(fails_with(open({input(1)}, {{"n_prefill", value}, {"n_decode", "2"}}), StatusCode::kBadInput,
                           {"trace.safetensors", "n_prefill", std::string("'") + value + "'", "16777216"}));
  }
  EXPECT_TRUE(fails_with(open({input(1)}, {{"n_prefill", "0"}, {"n_decode", "0"}}), StatusCode::kBadInput,
                         {"n_prefill + n_decode is 0"}));
}

TEST_F(AttentionTraceTest, ShapesMustFollowFromTheCountsAndTheConfig) {
  const auto refused = [&](TensorDeclaration wrong, std::string_view found, std::string_view expected) {
    Tensors tensors{std::move(wrong)};
    const std::string name = tensors[0].name;
    if (name != "layers.1.input") tensors.push_back(input(1));
    return fails_with(open(tensors), StatusCode::kBadInput, {"trace.safetensors", name, found, expected});
  };
  EXPECT_TRUE(refused(input(1, 9), "[9, 128]", "[10, 128]"));
  EXPECT_TRUE(refused(input(1, kTokens, 64), "[10, 64]", "[10, 128]"));
  EXPECT_TRUE(refused({"layers.1.input", TensorDtype::kBf16, {kTokens, 128, 1}}, "[10, 128, 1]", "[10, 128]"));
  EXPECT_TRUE(refused({"layers.1.input", TensorDtype::kF32, {kTokens, 128}}, "F32", "BF16"));
  EXPECT_TRUE(refused({"layers.1.output", TensorDtype::kBf16, {11, 128}}, "[11, 128]", "[10, 128]"));
  EXPECT_TRUE(refused({"layers.1.compressed_kv", TensorDtype::kBf16, {3, 512}}, "[3, 512]", "[2, 512]"));
  EXPECT_TRUE(refused({"layers.1.index_k", TensorDtype::kBf16, {2, 64}}, "[2, 64]", "[2, 128]"));
  EXPECT_TRUE(refused({"layers.1.topk", TensorDtype::kF32, {kTokens, 16}}, "F32", "I32"));
  EXPECT_TRUE(refused({"layers.1.topk", TensorDtype::kI32, {kTokens}}, "[10]", "[10, -1]"));
  EXPECT_TRUE(refused({"layers.1.topk_margin", TensorDtype::kF32, {9}}, "[9]", "[10]"));
  EXPECT_TRUE(refused({"layers.1.window_kv_last", TensorDtype::kBf16, {128, 512}}, "[128, 512]", "[10, 512]"));
}

TEST_F(AttentionTraceTest, NamesMustBeKnown) {
  const auto refused = [&](const std::string& name, std::string_view why) {
    return fails_with(open({input(1), {name, TensorDtype::kBf16, {1}}}), StatusCode::kBadInput,
                      {"trace.safetensors", name, why});
  };
  EXPECT_TRUE(refused("layers.1.surprise", "unknown field; accepted: input, output"));
  for (const char* name : {"input", "layers.input", "layers.x.input", "layers.1", "layers..input", "layers.1input",
                           "layers.99999999999999.input"}) {
    EXPECT_TRUE(refused(name, "name is not layers.N.<field>"));
  }
  EXPECT_TRUE(refused("layers.3.input", "layer 3 is outside the model's 0 to 2"));
  EXPECT_TRUE(refused("layers.-1.input", "layer -1 is outside"));
}

TEST_F(AttentionTraceTest, EveryLayerAskedForNeedsItsInput) {
  EXPECT_TRUE(fails_with(open({input(0)}), StatusCode::kBadInput, {"trace.safetensors", "layers.1.input", "missing"}));
  EXPECT_TRUE(fails_with(open({{"layers.1.output", TensorDtype::kBf16, {kTokens, 128}}}), StatusCode::kBadInput,
                         {"layers.1.input", "missing"}));
}

// A file cannot make the reader allocate: counts are checked against real bytes first.
TEST_F(AttentionTraceTest, HugeCountsWithoutDataAreRefused) {
  EXPECT_TRUE(fails_with(open({input(1)}, {{"n_prefill", "16777216"}, {"n_decode", "16777216"}}), StatusCode::kBadInput,
                         {"layers.1.input", "[33554432, 128]"}));
}

}  // namespace
}  // namespace dsv4rt::test
