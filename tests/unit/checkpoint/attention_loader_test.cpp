#include "checkpoint/attention_loader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "checkpoint/weight_index.h"
#include "unit/checkpoint/allocation_meter.h"
#include "unit/checkpoint/attention_loader_fixture.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt {
namespace {

std::string float_bytes(std::initializer_list<float> values) {
  std::string out(values.size() * sizeof(float), '\0');
  std::memcpy(out.data(), values.begin(), out.size());
  return out;
}

TEST_F(AttentionLoaderTest, Fp8LayersOfEveryKind) {
  start(WeightEncoding::kFp8Block128);
  const auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  ASSERT_EQ(loaded->size(), 3U);
  const HostAttentionWeights& swa = (*loaded)[0];
  EXPECT_EQ(swa.spec.id, LayerId(0));
  EXPECT_EQ(swa.attn_sink.size(), 4U);
  EXPECT_EQ(swa.q_norm.size(), 160U);
  EXPECT_EQ(swa.kv_norm.size(), 512U);
  EXPECT_FALSE(swa.compressor || swa.indexer);
  EXPECT_EQ(swa.wq_a.name, "layers.0.attn.wq_a.weight");
  EXPECT_EQ(swa.wq_a.encoding, WeightEncoding::kFp8Block128);
  EXPECT_EQ(swa.wq_a.activation, ActivationRounding::kFp8Block128);
  EXPECT_EQ(swa.wq_a.out_features, 160);
  EXPECT_EQ(swa.wq_a.in_features, 192);
  EXPECT_EQ(swa.wq_a.weight.data(), checkpoint_->find("layers.0.attn.wq_a.weight").view->data.data());
  EXPECT_EQ(swa.wq_a.scale.size(), 4U);
  EXPECT_EQ(swa.wo_a.activation, ActivationRounding::kNone);
  EXPECT_EQ(swa.wo_a.encoding, WeightEncoding::kFp8Block128);
  EXPECT_EQ(swa.wo_a.out_features, 96);
  EXPECT_EQ(swa.wo_a.in_features, 1024);
  EXPECT_EQ(swa.wo_b.activation, ActivationRounding::kFp8Block128);

  const HostAttentionWeights& csa = (*loaded)[1];
  ASSERT_TRUE(csa.compressor && csa.indexer);
  EXPECT_EQ(csa.compressor->ape.size(), 4U * 1024);
  EXPECT_EQ(csa.compressor->wkv.out_features, 1024);
  EXPECT_EQ(csa.compressor->wgate.encoding, WeightEncoding::kBf16);
  EXPECT_EQ(csa.compressor->wgate.activation, ActivationRounding::kNone);
  EXPECT_EQ(csa.compressor->norm.size(), 512U);
  EXPECT_EQ(csa.indexer->wq_b.activation, ActivationRounding::kFp8Block128);
  EXPECT_EQ(csa.indexer->weights_proj.out_features, 3);
  EXPECT_EQ(csa.indexer->compressor.wkv.out_features, 256);
  EXPECT_EQ(csa.indexer->compressor.norm.size(), 128U);
  EXPECT_EQ(csa.indexer->compressor.ape.size(), 4U * 256);

  const HostAttentionWeights& hca = (*loaded)[2];
  ASSERT_TRUE(hca.compressor && !hca.indexer);
  EXPECT_EQ(hca.compressor->ape.size(), 128U * 512);
  float sink = 0;
  std::memcpy(&sink, checkpoint_->find("layers.2.attn.attn_sink").view->data.data() + 4, sizeof(sink));
  EXPECT_EQ(hca.attn_sink[1], sink);
}

TEST_F(AttentionLoaderTest, OneLayerAndCopiesThatOutliveIt) {
  start(WeightEncoding::kBf16);
  ASSERT_TRUE(load().ok());
  HostAttentionWeights copy;
  {
    auto loaded = load_attention_weights(*checkpoint_, small_config(), csa_layer(1));
    ASSERT_TRUE(loaded.ok());
    copy = *loaded;
  }
  EXPECT_EQ(copy.spec.ratio, 4);
  float sink = 0;
  std::memcpy(&sink, checkpoint_->find("layers.1.attn.attn_sink").view->data.data(), sizeof(sink));
  EXPECT_EQ(copy.attn_sink[0], sink);
  EXPECT_EQ(copy.wq_a.encoding, WeightEncoding::kBf16);
  EXPECT_EQ(copy.wq_a.activation, ActivationRounding::kNone);
  EXPECT_TRUE(copy.wq_a.scale.empty());
  const HostLinear slice = copy.wo_a.rows(48, 48);
  EXPECT_EQ(slice.first_row, 48);
  EXPECT_EQ(slice.out_features, 48);
}

TEST_F(AttentionLoaderTest, Nvfp4Linears) {
  start(WeightEncoding::kNvfp4);
  // The optional input scale, and scalars spelled as one-element vectors.
  tensors_.push_back({{"layers.0.attn.wq_a.input_scale", TensorDtype::kF32, {}}, float_bytes({0.5F})});
  tensor("layers.0.attn.wq_a.weight_scale_2").declaration.shape = {1};
  const auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const HostLinear& wq_a = (*loaded)[0].wq_a;
  EXPECT_EQ(wq_a.encoding, WeightEncoding::kNvfp4);
  EXPECT_EQ(wq_a.activation, ActivationRounding::kNone);
  EXPECT_EQ(wq_a.weight.size(), 160U * 96);
  EXPECT_EQ(wq_a.scale.size(), 160U * 12);
  EXPECT_GT(wq_a.global_scale, 0.0F);
  EXPECT_LT(wq_a.global_scale, 1.0F);
  EXPECT_EQ(wq_a.input_scale, 0.5F);
  EXPECT_EQ((*loaded)[0].wkv.input_scale, 0.0F);
  EXPECT_EQ((*loaded)[1].compressor->wkv.encoding, WeightEncoding::kBf16);
}

TEST_F(AttentionLoaderTest, EverySchemeOfNamesGivesTheSameWeights) {
  start(WeightEncoding::kFp8Block128);
  const auto reference = load();
  ASSERT_TRUE(reference.ok());
  const auto bytes_of = [](std::span<const std::byte> bytes) { return std::vector(bytes.begin(), bytes.end()); };
  const auto weight = bytes_of((*reference)[1].indexer->wq_b.weight);
  const auto scale = bytes_of((*reference)[1].wo_a.scale);
  for (const bool hugging_face : {false, true}) {
    for (const bool model_prefix : {false, true}) {
      start(WeightEncoding::kFp8Block128, {hugging_face, model_prefix});
      const auto loaded = load();
      ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
      EXPECT_EQ(bytes_of((*loaded)[1].indexer->wq_b.weight), weight);
      EXPECT_EQ(bytes_of((*loaded)[1].wo_a.scale), scale);
      EXPECT_EQ((*loaded)[1].wq_a.name.starts_with("model."), model_prefix);
    }
  }
}

TEST_F(AttentionLoaderTest, EitherSuffixOfScalesUnderEitherScheme) {
  start(WeightEncoding::kFp8Block128);
  tensor("layers.0.attn.wq_a.scale").declaration.name = "layers.0.attn.wq_a.weight_scale_inv";
  EXPECT_TRUE(load().ok());
  start(WeightEncoding::kFp8Block128, {true, true});
  tensor("model.layers.0.self_attn.q_a_proj.weight_scale_inv").declaration.name =
      "model.layers.0.self_attn.q_a_proj.scale";
  EXPECT_TRUE(load().ok());
}

TEST_F(AttentionLoaderTest, BothSuffixesAreAmbiguous) {
  start(WeightEncoding::kFp8Block128);
  TestTensor twin = tensor("layers.0.attn.wq_a.scale");
  twin.declaration.name = "layers.0.attn.wq_a.weight_scale_inv";
  tensors_.push_back(twin);
  expect_problem(StatusCode::kBadInput, "layers.0.attn.wq_a.scale", {"weight_scale_inv", "one of the two"});
}

TEST_F(AttentionLoaderTest, EncodingsMayDifferBetweenLinears) {
  start(WeightEncoding::kFp8Block128);
  replace("layers.0.attn.wo_a.weight", TensorDtype::kBf16, {96, 1024});
  remove("layers.0.attn.wo_a.scale");
  const auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ((*loaded)[0].wo_a.encoding, WeightEncoding::kBf16);
  EXPECT_EQ((*loaded)[0].wo_b.encoding, WeightEncoding::kFp8Block128);
}

TEST_F(AttentionLoaderTest, FloatScalesThatArePowersOfTwo) {
  start(WeightEncoding::kFp8Block128);
  const std::string name = "layers.0.attn.wq_a.scale";
  replace(name, TensorDtype::kF32, {2, 2}, float_bytes({1.0F, 0x1p-64F, 0x1p64F, 0.5F}));
  const auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const auto scale = (*loaded)[0].wq_a.scale;
  ASSERT_EQ(scale.size(), 4U);
  EXPECT_EQ(std::to_integer<int>(scale[0]), 127);
  EXPECT_EQ(std::to_integer<int>(scale[1]), 63);
  EXPECT_EQ(std::to_integer<int>(scale[2]), 191);
  EXPECT_EQ(std::to_integer<int>(scale[3]), 126);

  for (const float bad : {1.5F, 0.0F, -1.0F, -0.0F, 0x1p-130F, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    replace(name, TensorDtype::kF32, {2, 2}, float_bytes({1.0F, 1.0F, bad, 1.0F}));
    expect_problem(StatusCode::kUnsupported, name, {"index 2", "powers of two"});
  }
  replace(name, TensorDtype::kF32, {2, 2}, float_bytes({1.0F, 1.0F, 1.0F, 0x1p65F}));
  expect_problem(StatusCode::kBadInput, name, {"2^65", "index 3", "2^-64..2^64"});
}

TEST_F(AttentionLoaderTest, ScaleCodesOutsideTheRange) {
  const std::string name = "layers.1.attn.indexer.wq_b.scale";
  start(WeightEncoding::kFp8Block128);
  std::string& codes = tensor(name).bytes;
  const std::string valid = codes;
  for (const int code : {63, 191}) {
    codes = valid;
    codes[1] = static_cast<char>(code);
    EXPECT_TRUE(load().ok()) << code;
  }
  const std::pair<int, const char*> bad[] = {{255, "NaN"}, {62, "2^-65"}, {192, "2^65"}, {0, "2^-127"}};
  for (const auto& [code, text] : bad) {
    codes = valid;
    codes[1] = static_cast<char>(code);
    expect_problem(StatusCode::kBadInput, name, {text, "index 1"});
  }
}

TEST_F(AttentionLoaderTest, VectorsInTheOtherPrecision) {
  start(WeightEncoding::kBf16);
  std::string norm_bytes(512 * sizeof(float), '\0');
  const float value = 1.00390625F;  // halfway between two BF16 values: rounds to the even one, 1
  std::memcpy(norm_bytes.data(), &value, sizeof(value));
  replace("layers.0.attn.kv_norm.weight", TensorDtype::kF32, {512}, norm_bytes);
  replace("layers.0.attn.attn_sink", TensorDtype::kBf16, {4}, std::string("\x80\x3f\x00\x40\x40\xc0\x80\xff", 8));
  expect_problem(StatusCode::kBadInput, "layers.0.attn.attn_sink", {"infinity at index 3", "finite values"});
  const auto loaded = load(NonFinite::kAllowed);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ(to_float((*loaded)[0].kv_norm[0]), 1.0F);
  EXPECT_EQ((*loaded)[0].attn_sink[0], 1.0F);
  EXPECT_EQ((*loaded)[0].attn_sink[1], 2.0F);
  EXPECT_EQ((*loaded)[0].attn_sink[2], -3.0F);
  EXPECT_EQ((*loaded)[0].attn_sink[3], -std::numeric_limits<float>::infinity());
}

// A number in the file that is none in the engine.
TEST_F(AttentionLoaderTest, NormsThatOverflowAreRefused) {
  start(WeightEncoding::kBf16);
  std::string norm_bytes(512 * sizeof(float), '\0');
  const float value = std::numeric_limits<float>::max();
  std::memcpy(norm_bytes.data() + 7 * sizeof(value), &value, sizeof(value));
  replace("layers.0.attn.kv_norm.weight", TensorDtype::kF32, {512}, norm_bytes);
  expect_problem(StatusCode::kBadInput, "layers.0.attn.kv_norm.weight", {"infinity at index 7"});
  EXPECT_TRUE(load(NonFinite::kAllowed).ok());
}

TEST_F(AttentionLoaderTest, UnalignedDataIsCopiedWhereTypesNeedIt) {
  start(WeightEncoding::kBf16);
  const auto aligned = load();
  ASSERT_TRUE(aligned.ok());
  const auto weight = (*aligned)[0].wq_a.weight;
  const std::vector<std::byte> expected(weight.begin(), weight.end());
  const float sink = (*aligned)[0].attn_sink[2];
  // One byte ahead of everything shifts every tensor to an odd address.
  tensors_.insert(tensors_.begin(), {{"odd", TensorDtype::kU8, {1}}, "x"});
  const auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const HostLinear& wq_a = (*loaded)[0].wq_a;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(checkpoint_->find(wq_a.name).view->data.data()) % 2, 1U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(wq_a.weight.data()) % 2, 0U);
  EXPECT_TRUE(std::equal(wq_a.weight.begin(), wq_a.weight.end(), expected.begin(), expected.end()));
  EXPECT_EQ((*loaded)[0].attn_sink[2], sink);
}

TEST_F(AttentionLoaderTest, SingleProblems) {
  struct Case {
    std::string name;
    std::function<void()> change;
    StatusCode code;
    std::vector<std::string> parts;
  };
  const std::string prefix = "layers.1.attn.";
  const std::vector<Case> cases = {
      {prefix + "wq_a.weight",
       [&] { remove(prefix + "wq_a.weight"); },
       StatusCode::kNotFound,
       {"nothing", "BF16, F8_E4M3 or U8 (NVFP4) [160, 192]"}},
      {prefix + "wq_a.scale",
       [&] { remove(prefix + "wq_a.scale"); },
       StatusCode::kNotFound,
       {"nothing", "F8_E8M0 [2, 2]"}},
      {prefix + "attn_sink", [&] { remove(prefix + "attn_sink"); }, StatusCode::kNotFound, {"nothing", "F32 [4]"}},
      {prefix + "q_norm.weight", [&] { remove(prefix + "q_norm.weight"); }, StatusCode::kNotFound, {"BF16 [160]"}},
      {prefix + "wq_a.weight",
       [&] {
         replace(prefix + "wq_a.weight", TensorDtype::kF8E4M3, {192, 160});
       },
       StatusCode::kBadInput,
       {"F8_E4M3 [192, 160]", "F8_E4M3 [160, 192]"}},
      {prefix + "wq_a.weight",
       [&] {
         replace(prefix + "wq_a.weight", TensorDtype::kF16, {160, 192});
       },
       StatusCode::kUnsupported,
       {"F16 [160, 192]", "BF16, F8_E4M3"}},
      {prefix + "wq_a.weight",
       [&] {
         replace(prefix + "wq_a.weight", TensorDtype::kF8E5M2, {160, 192});
       },
       StatusCode::kUnsupported,
       {"F8_E5M2"}},
      {prefix + "wq_b.weight",
       [&] {
         replace(prefix + "wq_b.weight", TensorDtype::kBf16, {2048, 161});
       },
       StatusCode::kBadInput,
       {"BF16 [2048, 161]"}},
      {prefix + "wq_a.scale",
       [&] {
         replace(prefix + "wq_a.scale", TensorDtype::kF8E8M0, {2, 1}, "\x7f\x7f");
       },
       StatusCode::kBadInput,
       {"F8_E8M0 [2, 1]", "F8_E8M0 or F32 [2, 2]"}},
      {prefix + "wq_a.scale",
       [&] {
         replace(prefix + "wq_a.scale", TensorDtype::kBf16, {2, 2});
       },
       StatusCode::kUnsupported,
       {"BF16 [2, 2]"}},
      {prefix + "compressor.wkv.weight",
       [&] {
         replace(prefix + "compressor.wkv.weight", TensorDtype::kF32, {1024, 192});
       },
       StatusCode::kUnsupported,
       {"F32 [1024, 192]", "expected BF16 [1024, 192]"}},
      {prefix + "compressor.wgate.weight",
       [&] {
         replace(prefix + "compressor.wgate.weight", TensorDtype::kF8E4M3, {1024, 192});
       },
       StatusCode::kUnsupported,
       {"F8_E4M3"}},
      {prefix + "indexer.weights_proj.weight",
       [&] {
         replace(prefix + "indexer.weights_proj.weight", TensorDtype::kF32, {3, 192});
       },
       StatusCode::kUnsupported,
       {"F32 [3, 192]"}},
      {prefix + "compressor.ape",
       [&] {
         replace(prefix + "compressor.ape", TensorDtype::kF32, {4, 512});
       },
       StatusCode::kBadInput,
       {"F32 [4, 512]", "[4, 1024]"}},
      {prefix + "attn_sink",
       [&] { replace(prefix + "attn_sink", TensorDtype::kF64, {4}); },
       StatusCode::kUnsupported,
       {"F64 [4]", "F32 or BF16"}},
      {prefix + "kv_norm.weight",
       [&] { replace(prefix + "kv_norm.weight", TensorDtype::kF16, {512}); },
       StatusCode::kUnsupported,
       {"F16 [512]", "BF16 or F32"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    start(WeightEncoding::kFp8Block128);
    c.change();
    expect_problem(c.code, c.name, c.parts);
  }
}

TEST_F(AttentionLoaderTest, SingleProblemsOfNvfp4) {
  const std::string name = "layers.0.attn.wkv";
  const auto refused = [&](auto&& change, StatusCode code, const std::string& suffix,
                           const std::vector<std::string>& parts) {
    SCOPED_TRACE(suffix);
    start(WeightEncoding::kNvfp4);
    change();
    expect_problem(code, name + suffix, parts);
  };
  refused([&] { remove(name + ".weight_scale"); }, StatusCode::kNotFound, ".weight_scale", {"F8_E4M3 [512, 12]"});
  refused([&] { remove(name + ".weight_scale_2"); }, StatusCode::kNotFound, ".weight_scale_2", {"F32 []"});
  refused([&] { replace(name + ".weight_scale_2", TensorDtype::kF32, {2}); }, StatusCode::kBadInput, ".weight_scale_2",
          {"F32 [2]"});
  refused([&] { replace(name + ".weight_scale_2", TensorDtype::kF32, {}, float_bytes({0.0F})); }, StatusCode::kBadInput,
          ".weight_scale_2", {"above 0"});
  refused(
      [&] {
        replace(name + ".weight_scale_2", TensorDtype::kF32, {}, float_bytes({std::numeric_limits<float>::infinity()}));
      },
      StatusCode::kBadInput, ".weight_scale_2", {"inf"});
  refused(
      [&] {
        replace(name + ".weight", TensorDtype::kU8, {512, 95});
      },
      StatusCode::kBadInput, ".weight", {"U8 [512, 95]", "U8 [512, 96]"});
  refused(
      [&] {
        replace(name + ".weight_scale", TensorDtype::kF8E8M0, {512, 12});
      },
      StatusCode::kUnsupported, ".weight_scale", {"F8_E8M0"});
  refused(
      [&] {
        tensors_.push_back({{name + ".input_scale", TensorDtype::kBf16, {}}, {}});
      },
      StatusCode::kBadInput, ".input_scale", {"BF16 []"});
  refused(
      [&] {
        tensors_.push_back({{name + ".input_scale", TensorDtype::kF32, {}}, float_bytes({-0.5F})});
      },
      StatusCode::kBadInput, ".input_scale", {"above 0"});
}

TEST_F(AttentionLoaderTest, Nvfp4NeedsWholeGroups) {
  ModelConfig config = small_config();
  config.q_lora_rank = 168;
  const LayerSpec layer = swa_layer(0);
  ASSERT_TRUE(write_synthetic_checkpoint(directory_ / "odd", config, std::span(&layer, 1), {}).ok());
  auto source = Checkpoint::open(directory_ / "odd");
  ASSERT_TRUE(source.ok());
  tensors_ = read_tensors(*source);
  replace("layers.0.attn.wq_b.weight", TensorDtype::kU8, {2048, 84});
  write_tensors(directory_ / "model.safetensors", tensors_);
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint.ok());
  const Status status = load_attention_weights(*checkpoint, config, layer).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
  EXPECT_NE(status.message().find("multiple of 16 inputs, this linear has 168"), std::string::npos) << status.message();
}

TEST_F(AttentionLoaderTest, AllProblemsOfAllLayersInOneError) {
  start(WeightEncoding::kFp8Block128);
  remove("layers.0.attn.attn_sink");
  remove("layers.0.attn.wq_b.scale");
  replace("layers.1.attn.compressor.norm.weight", TensorDtype::kBf16, {256});
  replace("layers.1.attn.indexer.compressor.wkv.weight", TensorDtype::kF32, {256, 192});
  remove("layers.2.attn.wo_b.weight");
  tensor("layers.2.attn.wkv.scale").bytes[0] = static_cast<char>(255);
  const auto loaded = load();
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), StatusCode::kBadInput);
  std::istringstream lines(loaded.status().message());
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, directory_.path().string() + ": 6 problems with attention tensors:");
  std::vector<std::string> names;
  while (std::getline(lines, line)) names.push_back(line.substr(2, line.find(':') - 2));
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"layers.0.attn.attn_sink", "layers.0.attn.wq_b.scale",
                                             "layers.1.attn.compressor.norm.weight",
                                             "layers.1.attn.indexer.compressor.wkv.weight", "layers.2.attn.wkv.scale",
                                             "layers.2.attn.wo_b.weight"}));
}

TEST_F(AttentionLoaderTest, OnlyMissingTensorsIsNotFound) {
  start(WeightEncoding::kBf16);
  std::erase_if(tensors_, [](const TestTensor& t) { return t.declaration.name.starts_with("layers.1."); });
  const auto loaded = load();
  EXPECT_EQ(loaded.status().code(), StatusCode::kNotFound);
  EXPECT_NE(loaded.status().message().find("18 problems"), std::string::npos) << loaded.status().message();
}

TEST_F(AttentionLoaderTest, RefusesForeignFilesAndConfigs) {
  write_tensors(directory_ / "model.safetensors", {{{"mtp.0.attn.wq_a.weight", TensorDtype::kU8, {1}}, {}}});
  const auto foreign = Checkpoint::open(directory_.path());
  ASSERT_TRUE(foreign.ok());
  EXPECT_EQ(load_attention_weights(*foreign, small_config(), layers_).status().code(), StatusCode::kNotFound);
  ModelConfig config = small_config();
  config.o_lora_rank = 40;
  EXPECT_EQ(load_attention_weights(*foreign, config, layers_).status().code(), StatusCode::kUnsupported);
}

TEST_F(AttentionLoaderTest, RunningOutOfMemoryIsAStatus) {
  start(WeightEncoding::kBf16);
  ASSERT_TRUE(load().ok());
  StatusCode code = StatusCode::kOk;
  {
    const AllocationLimit limit(5'000);
    code = load_attention_weights(*checkpoint_, small_config(), layers_).status().code();
  }
  EXPECT_EQ(code, StatusCode::kResourceExhausted);
}

TEST_F(AttentionLoaderTest, ShardedIndex) {
  ASSERT_TRUE(write_synthetic_checkpoint(directory_.path(), small_config(), layers_,
                                         {WeightEncoding::kFp8Block128, 11, 300'000})
                  .ok());
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_GT(checkpoint->files().size(), 3U);
  const auto loaded = load_attention_weights(*checkpoint, small_config(), layers_);
  EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
}

// Resident bytes of this process's mappings that begin in `range`.
std::size_t resident_bytes(std::span<const std::byte> range) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  std::size_t kib = 0;
  const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
  while (std::getline(maps, line)) {
    if (line.find('-') != std::string::npos && line.find('-') < line.find(' ')) {
      const std::uintptr_t at = std::stoull(line, nullptr, 16);
      inside = at >= begin && at < begin + range.size();
    } else if (inside && line.starts_with("Rss:")) {
      kib += std::stoul(line.substr(4));
    }
  }
  return kib * 1024;
}

// The rest of a model in the same file: 64 GiB that exist only as a hole. Loading must not read them.
TEST_F(AttentionLoaderTest, TensorsOfOtherModulesStayUnread) {
  start(WeightEncoding::kFp8Block128);
  constexpr std::uint64_t kHoleBytes = std::uint64_t{1} << 36;
  std::string json = R"({"layers.0.ffn.experts.w1":{"dtype":"F4","shape":[8388608,16384],"data_offsets":[0,)" +
                     std::to_string(kHoleBytes) + "]}";
  std::uint64_t offset = kHoleBytes;
  for (const TestTensor& t : tensors_) {
    std::ostringstream entry;
    entry << ",\"" << t.declaration.name << R"(":{"dtype":")" << tensor_dtype_name(t.declaration.dtype)
          << R"(","shape":[)";
    for (std::size_t i = 0; i < t.declaration.shape.size(); ++i) entry << (i ? "," : "") << t.declaration.shape[i];
    entry << R"(],"data_offsets":[)" << offset << ',' << offset + t.bytes.size() << "]}";
    json += entry.str();
    offset += t.bytes.size();
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const auto path = directory_ / "model.safetensors";
  write_bytes(path, safetensors_bytes(json, ""));
  const std::uint64_t data_begin = 8 + json.size();
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(data_begin + kHoleBytes)), 0);
  {
    std::ofstream file(path, std::ios::binary | std::ios::app);
    for (const TestTensor& t : tensors_) file << t.bytes;
  }
  const AllocationMeter meter;
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  const auto loaded = load_attention_weights(*checkpoint, small_config(), layers_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_LT(meter.peak_bytes(), 2U * 1024 * 1024);
  const std::size_t resident = resident_bytes(checkpoint->files()[0].image().bytes());
  EXPECT_GE(resident, loaded->front().wq_b.weight.size());
  EXPECT_LT(resident, 8U * 1024 * 1024);
}

}  // namespace
}  // namespace dsv4rt
