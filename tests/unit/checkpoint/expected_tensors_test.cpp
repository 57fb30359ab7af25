#include "checkpoint/expected_tensors.h"

#include <gtest/gtest.h>

#include <map>

#include "unit/checkpoint/test_files.h"

namespace dsv4rt {
namespace {

using Shape = std::vector<std::int64_t>;

std::map<std::string, std::pair<std::string, Shape>> by_name(const std::vector<TensorDeclaration>& tensors) {
  std::map<std::string, std::pair<std::string, Shape>> out;
  for (const auto& tensor : tensors) out[tensor.name] = {std::string(tensor_dtype_name(tensor.dtype)), tensor.shape};
  return out;
}

// The dimensions of V4-Flash.
ModelConfig flash_config() {
  ModelConfig config;
  config.hidden_size = 4096;
  config.num_attention_heads = 64;
  config.q_lora_rank = 1024;
  config.o_lora_rank = 1024;
  config.o_groups = 8;
  config.index_n_heads = 64;
  return config;
}

TEST(ExpectedTensorsTest, ReleasedNamesAndShapesOfACsaLayer) {
  const auto tensors = by_name(expected_tensors(flash_config(), csa_layer(2), WeightEncoding::kFp8Block128));
  const std::map<std::string, std::pair<std::string, Shape>> expected = {
      {"layers.2.attn.attn_sink", {"F32", {64}}},
      {"layers.2.attn.wq_a.weight", {"F8_E4M3", {1024, 4096}}},
      {"layers.2.attn.wq_a.scale", {"F8_E8M0", {8, 32}}},
      {"layers.2.attn.q_norm.weight", {"BF16", {1024}}},
      {"layers.2.attn.wq_b.weight", {"F8_E4M3", {32768, 1024}}},
      {"layers.2.attn.wq_b.scale", {"F8_E8M0", {256, 8}}},
      {"layers.2.attn.wkv.weight", {"F8_E4M3", {512, 4096}}},
      {"layers.2.attn.wkv.scale", {"F8_E8M0", {4, 32}}},
      {"layers.2.attn.kv_norm.weight", {"BF16", {512}}},
      {"layers.2.attn.wo_a.weight", {"F8_E4M3", {8192, 4096}}},
      {"layers.2.attn.wo_a.scale", {"F8_E8M0", {64, 32}}},
      {"layers.2.attn.wo_b.weight", {"F8_E4M3", {4096, 8192}}},
      {"layers.2.attn.wo_b.scale", {"F8_E8M0", {32, 64}}},
      {"layers.2.attn.compressor.ape", {"F32", {4, 1024}}},
      {"layers.2.attn.compressor.wkv.weight", {"BF16", {1024, 4096}}},
      {"layers.2.attn.compressor.wgate.weight", {"BF16", {1024, 4096}}},
      {"layers.2.attn.compressor.norm.weight", {"BF16", {512}}},
      {"layers.2.attn.indexer.wq_b.weight", {"F8_E4M3", {8192, 1024}}},
      {"layers.2.attn.indexer.wq_b.scale", {"F8_E8M0", {64, 8}}},
      {"layers.2.attn.indexer.weights_proj.weight", {"BF16", {64, 4096}}},
      {"layers.2.attn.indexer.compressor.ape", {"F32", {4, 256}}},
      {"layers.2.attn.indexer.compressor.wkv.weight", {"BF16", {256, 4096}}},
      {"layers.2.attn.indexer.compressor.wgate.weight", {"BF16", {256, 4096}}},
      {"layers.2.attn.indexer.compressor.norm.weight", {"BF16", {128}}},
  };
  EXPECT_EQ(tensors, expected);
}

TEST(ExpectedTensorsTest, OtherKindsOfLayers) {
  const auto swa = by_name(expected_tensors(flash_config(), swa_layer(0), WeightEncoding::kBf16));
  EXPECT_EQ(swa.size(), 8U);
  EXPECT_EQ(swa.at("layers.0.attn.wo_b.weight"), (std::pair<std::string, Shape>{"BF16", {4096, 8192}}));
  const auto hca = by_name(expected_tensors(flash_config(), hca_layer(3), WeightEncoding::kBf16));
  EXPECT_EQ(hca.size(), 12U);
  EXPECT_EQ(hca.at("layers.3.attn.compressor.ape"), (std::pair<std::string, Shape>{"F32", {128, 512}}));
  EXPECT_EQ(hca.at("layers.3.attn.compressor.wkv.weight"), (std::pair<std::string, Shape>{"BF16", {512, 4096}}));
}

TEST(ExpectedTensorsTest, ScalesCoverPartialBlocks) {
  const auto tensors = by_name(expected_tensors(small_config(), swa_layer(0), WeightEncoding::kFp8Block128));
  EXPECT_EQ(tensors.at("layers.0.attn.wq_a.scale"), (std::pair<std::string, Shape>{"F8_E8M0", {2, 2}}));
  EXPECT_EQ(tensors.at("layers.0.attn.wo_b.scale"), (std::pair<std::string, Shape>{"F8_E8M0", {2, 1}}));
}

TEST(ExpectedTensorsTest, HuggingFaceNames) {
  const NamingScheme scheme{.hugging_face = true, .model_prefix = true};
  const auto tensors = by_name(expected_tensors(small_config(), csa_layer(7), WeightEncoding::kFp8Block128, scheme));
  const std::string prefix = "model.layers.7.self_attn.";
  for (const char* name :
       {"sinks", "q_a_proj.weight", "q_a_proj.weight_scale_inv", "q_a_norm.weight", "q_b_proj.weight",
        "q_b_proj.weight_scale_inv", "kv_proj.weight", "kv_proj.weight_scale_inv", "kv_norm.weight",
        "o_a_proj.weight", "o_a_proj.weight_scale_inv", "o_b_proj.weight", "o_b_proj.weight_scale_inv",
        "compressor.kv_proj.weight", "compressor.gate_proj.weight", "compressor.position_bias",
        "compressor.kv_norm.weight", "compressor.indexer.q_b_proj.weight",
        "compressor.indexer.q_b_proj.weight_scale_inv", "compressor.indexer.scorer.weights_proj.weight",
        "compressor.indexer.kv_proj.weight", "compressor.indexer.gate_proj.weight",
        "compressor.indexer.position_bias", "compressor.indexer.kv_norm.weight"}) {
    EXPECT_TRUE(tensors.contains(prefix + name)) << name;
  }
  EXPECT_EQ(tensors.size(), 24U);
}

TEST(ExpectedTensorsTest, Nvfp4InModelOptForm) {
  const auto tensors = by_name(expected_tensors(small_config(), swa_layer(0), WeightEncoding::kNvfp4));
  EXPECT_EQ(tensors.at("layers.0.attn.wq_a.weight"), (std::pair<std::string, Shape>{"U8", {160, 96}}));
  EXPECT_EQ(tensors.at("layers.0.attn.wq_a.weight_scale"), (std::pair<std::string, Shape>{"F8_E4M3", {160, 12}}));
  EXPECT_EQ(tensors.at("layers.0.attn.wq_a.weight_scale_2"), (std::pair<std::string, Shape>{"F32", {}}));
}

TEST(ExpectedTensorsTest, DimensionsThatNoTableCanHave) {
  EXPECT_TRUE(check_attention_dimensions(small_config(), csa_layer(0)).ok());
  const auto expect_refused = [](auto&& change, StatusCode code, std::string_view part) {
    ModelConfig config = small_config();
    change(config);
    const Status status = check_attention_dimensions(config, csa_layer(0));
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
  };
  const auto invalid = StatusCode::kInvalidArgument;
  expect_refused([](ModelConfig& c) { c.hidden_size = 0; }, invalid, "hidden_size of 0");
  expect_refused([](ModelConfig& c) { c.q_lora_rank = -1; }, invalid, "q_lora_rank of -1");
  expect_refused([](ModelConfig& c) { c.num_attention_heads = INT64_MAX; }, invalid, "num_attention_heads");
  expect_refused([](ModelConfig& c) { c.index_n_heads = 0; }, invalid, "index_n_heads");
  expect_refused([](ModelConfig& c) { c.o_groups = 3; }, invalid, "o_groups of 3 does not divide");
  expect_refused([](ModelConfig& c) { c.o_lora_rank = 24; }, StatusCode::kUnsupported, "multiple of 16");
  LayerSpec negative = hca_layer(0);
  negative.ratio = -4;
  EXPECT_EQ(check_attention_dimensions(small_config(), negative).code(), invalid);
}

TEST(TensorNamesTest, DetectsTheScheme) {
  struct Case {
    std::string name;
    bool hugging_face;
    bool model_prefix;
  };
  for (const Case& c : {Case{"layers.0.attn.wq_a.weight", false, false},
                        Case{"model.layers.12.attn.wq_a.weight", false, true},
                        Case{"layers.0.self_attn.q_a_proj.weight", true, false},
                        Case{"model.layers.0.self_attn.q_a_proj.weight", true, true}}) {
    const TempDirectory directory;
    write_tensors(directory / "model.safetensors", {{{c.name, TensorDtype::kU8, {1}}, {}},
                                                    {{"layers.x.attn.a", TensorDtype::kU8, {1}}, {}},
                                                    {{"layers.3", TensorDtype::kU8, {1}}, {}},
                                                    {{"layers.3.ffn.w1", TensorDtype::kU8, {1}}, {}},
                                                    {{"mtp.0.attn.wq_a.weight", TensorDtype::kU8, {1}}, {}}});
    const auto checkpoint = Checkpoint::open(directory.path());
    ASSERT_TRUE(checkpoint.ok());
    const auto scheme = detect_naming(*checkpoint);
    ASSERT_TRUE(scheme.ok()) << scheme.status().to_string();
    EXPECT_EQ(scheme->hugging_face, c.hugging_face) << c.name;
    EXPECT_EQ(scheme->model_prefix, c.model_prefix) << c.name;
  }
}

TEST(TensorNamesTest, RefusesMixedAndForeignNames) {
  const TempDirectory directory;
  write_tensors(directory / "mixed.safetensors", {{{"layers.0.attn.wq_a.weight", TensorDtype::kU8, {1}}, {}},
                                                  {{"model.layers.1.attn.wq_a.weight", TensorDtype::kU8, {1}}, {}}});
  write_tensors(directory / "foreign.safetensors", {{{"mtp.0.attn.wq_a.weight", TensorDtype::kU8, {1}}, {}}});
  const auto mixed = Checkpoint::open(directory / "mixed.safetensors");
  const auto foreign = Checkpoint::open(directory / "foreign.safetensors");
  ASSERT_TRUE(mixed.ok() && foreign.ok());
  const Status mixed_status = detect_naming(*mixed).status();
  EXPECT_EQ(mixed_status.code(), StatusCode::kBadInput);
  EXPECT_NE(mixed_status.message().find("model.layers.1.attn.wq_a.weight"), std::string::npos);
  const Status foreign_status = detect_naming(*foreign).status();
  EXPECT_EQ(foreign_status.code(), StatusCode::kNotFound);
  EXPECT_NE(foreign_status.message().find("foreign.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace dsv4rt
