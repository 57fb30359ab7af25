#include "checkpoint/synthetic_checkpoint.h"

#include <cmath>
#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "checkpoint/attention_loader.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/synthetic_values.h"
#include "checkpoint/weight_index.h"
#include "layout/codec_e4m3.h"
#include "layout/codec_e8m0.h"
#include "layout/codec_nvfp4.h"
#include "unit/checkpoint/allocation_meter.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt {
namespace {

SyntheticCheckpointOptions options_of(WeightEncoding encoding, std::uint64_t seed = 7, std::uint64_t shard_bytes = 0) {
  return {encoding, seed, shard_bytes};
}

// Element (row, col) of a linear as the definition of its encoding says.
float element(const HostLinear& linear, std::int64_t row, std::int64_t col) {
  const auto index = static_cast<std::size_t>(row * linear.in_features + col);
  switch (linear.encoding) {
    case WeightEncoding::kFp8Block128: {
      const std::int64_t blocks = (linear.in_features + 127) / 128;
      const auto scale = linear.scale[static_cast<std::size_t>((row / 128) * blocks + col / 128)];
      return decode_e4m3(std::to_integer<std::uint8_t>(linear.weight[index])) *
             decode_e8m0(std::to_integer<std::uint8_t>(scale));
    }
    case WeightEncoding::kNvfp4: {
      const auto pair = std::to_integer<std::uint8_t>(linear.weight[index / 2]);
      const auto scale = std::to_integer<std::uint8_t>(linear.scale[index / 16]);
      return decode_e2m1(static_cast<std::uint8_t>(index % 2 == 0 ? pair & 15 : pair >> 4)) * decode_e4m3(scale) *
             linear.global_scale;
    }
    case WeightEncoding::kBf16:
      break;
  }
  bf16 value;
  std::memcpy(&value, &linear.weight[index * sizeof(bf16)], sizeof(bf16));
  return to_float(value);
}

class SyntheticCheckpointTest : public testing::TestWithParam<WeightEncoding> {};

TEST_P(SyntheticCheckpointTest, HoldsExactlyTheExpectedTensors) {
  const TempDirectory directory;
  const auto layers = small_layers();
  const Status status =
      write_synthetic_checkpoint(directory / "new/model", small_config(), layers, options_of(GetParam()));
  ASSERT_TRUE(status.ok()) << status.to_string();
  const auto checkpoint = Checkpoint::open(directory / "new/model");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  std::size_t count = 0;
  for (const LayerSpec& layer : layers) {
    for (const auto& expected : expected_tensors(small_config(), layer, GetParam())) {
      const TensorView* view = checkpoint->find(expected.name).view;
      ASSERT_NE(view, nullptr) << expected.name;
      EXPECT_EQ(view->dtype, expected.dtype) << expected.name;
      EXPECT_TRUE(std::equal(view->shape.begin(), view->shape.end(), expected.shape.begin(), expected.shape.end()))
          << expected.name;
      const auto alignment = static_cast<std::uintptr_t>(std::max(1, tensor_dtype_bits(view->dtype) / 8));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view->data.data()) % alignment, 0U) << expected.name;
      ++count;
    }
  }
  EXPECT_EQ(checkpoint->tensors().size(), count);
}

TEST_P(SyntheticCheckpointTest, LinearsHoldTheMatrixOfTheirName) {
  const TempDirectory directory;
  const auto layers = small_layers();
  ASSERT_TRUE(write_synthetic_checkpoint(directory.path(), small_config(), layers, options_of(GetParam())).ok());
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok());
  const auto weights = load_attention_weights(*checkpoint, small_config(), layers);
  ASSERT_TRUE(weights.ok()) << weights.status().to_string();
  for (const HostLinear* linear : {&(*weights)[0].wq_a, &(*weights)[1].indexer->wq_b, &(*weights)[2].wo_b}) {
    EXPECT_EQ(linear->encoding, GetParam());
    const SyntheticMatrix matrix(7, linear->name, linear->in_features);
    std::vector<float> row(static_cast<std::size_t>(linear->in_features));
    for (const std::int64_t r : {std::int64_t{0}, std::int64_t{127}, linear->out_features - 1}) {
      matrix.fill_row(r, row);
      for (std::int64_t c = 0; c < linear->in_features; ++c) {
        const float value = row[static_cast<std::size_t>(c)];
        // Half a step: 2^-9 of the value in BF16, 2^-4 in E4M3; E2M1 steps are up to 2/6 of the maximum.
        const float tolerance = GetParam() == WeightEncoding::kBf16          ? std::fabs(value) * 0x1p-8F
                                : GetParam() == WeightEncoding::kFp8Block128 ? std::fabs(value) * 0x1p-4F + 1e-4F
                                                                             : matrix.bound() / 5;
        ASSERT_NEAR(element(*linear, r, c), value, tolerance) << linear->name << " " << r << " " << c;
      }
    }
  }
}

TEST_P(SyntheticCheckpointTest, ContentDependsOnSeedAndNameOnly) {
  const TempDirectory directory;
  const auto layers = small_layers();
  const auto write = [&](std::string_view name, std::span<const LayerSpec> range, SyntheticCheckpointOptions options) {
    const Status status = write_synthetic_checkpoint(directory / name, small_config(), range, options);
    EXPECT_TRUE(status.ok()) << status.to_string();
    auto checkpoint = Checkpoint::open(directory / name);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
    std::map<std::string, std::string> out;
    for (const TestTensor& tensor : read_tensors(*checkpoint)) out[tensor.declaration.name] = tensor.bytes;
    return out;
  };
  const auto whole = write("whole", layers, options_of(GetParam()));
  const auto sharded = write("sharded", layers, options_of(GetParam(), 7, 100'000));
  const auto part = write("part", std::span(layers).subspan(1, 1), options_of(GetParam()));
  const auto other = write("other", layers, options_of(GetParam(), 8));
  EXPECT_EQ(whole, sharded);
  for (const auto& [name, bytes] : part) EXPECT_EQ(whole.at(name), bytes) << name;
  EXPECT_LT(part.size(), whole.size());
  EXPECT_NE(whole.at("layers.1.attn.wq_a.weight"), other.at("layers.1.attn.wq_a.weight"));
  EXPECT_NE(whole.at("layers.0.attn.attn_sink"), whole.at("layers.1.attn.attn_sink"));
}

INSTANTIATE_TEST_SUITE_P(Encodings, SyntheticCheckpointTest,
                         testing::Values(WeightEncoding::kBf16, WeightEncoding::kFp8Block128, WeightEncoding::kNvfp4));

TEST(SyntheticCheckpointShardsTest, ShardsKeepToTheLimit) {
  const TempDirectory directory;
  constexpr std::uint64_t kLimit = 500'000;
  ASSERT_TRUE(write_synthetic_checkpoint(directory.path(), small_config(), small_layers(),
                                         options_of(WeightEncoding::kFp8Block128, 0, kLimit))
                  .ok());
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_GT(checkpoint->files().size(), 2U);
  std::uint64_t total = 0;
  for (const SafetensorsReader& file : checkpoint->files()) {
    std::uint64_t bytes = 0;
    for (const TensorView& tensor : file.tensors()) bytes += tensor.data.size();
    EXPECT_TRUE(bytes <= kLimit || file.tensors().size() == 1) << file.path();
    EXPECT_GT(bytes, 0U);
    total += bytes;
  }
  const std::string index = read_bytes(directory / kWeightIndexFileName);
  EXPECT_NE(index.find("\"total_size\": " + std::to_string(total)), std::string::npos);
  EXPECT_NE(index.find("model-00001-of-0000"), std::string::npos);
}

TEST(SyntheticCheckpointShardsTest, MemoryDoesNotGrowWithTheMatrices) {
  ModelConfig config = small_config();
  config.hidden_size = 1024;
  config.num_attention_heads = 32;  // wq_b: [16384, 160]
  const TempDirectory directory;
  const LayerSpec layers[] = {swa_layer(0)};
  const AllocationMeter meter;
  ASSERT_TRUE(write_synthetic_checkpoint(directory.path(), config, layers, options_of(WeightEncoding::kBf16)).ok());
  // The largest stripe is 128 rows of 8192 FP32 values and their codes.
  EXPECT_LT(meter.peak_bytes(), 7U * 1024 * 1024);
  EXPECT_GT(std::filesystem::file_size(directory / kSingleWeightFileName), 8U * 1024 * 1024);
}

TEST(SyntheticCheckpointErrorsTest, AreTyped) {
  const TempDirectory directory;
  const auto layers = small_layers();
  const auto write = [&](std::string_view name, const ModelConfig& config, WeightEncoding encoding) {
    return write_synthetic_checkpoint(directory / name, config, layers, options_of(encoding));
  };
  ASSERT_TRUE(write("a", small_config(), WeightEncoding::kBf16).ok());
  EXPECT_EQ(write("a", small_config(), WeightEncoding::kBf16).code(), StatusCode::kFailedPrecondition);
  ModelConfig odd = small_config();
  odd.q_lora_rank = 168;  // 8 modulo 16
  const Status nvfp4 = write("b", odd, WeightEncoding::kNvfp4);
  EXPECT_EQ(nvfp4.code(), StatusCode::kUnsupported);
  EXPECT_NE(nvfp4.message().find("wq_b.weight"), std::string::npos) << nvfp4.message();
  EXPECT_TRUE(write("b", odd, WeightEncoding::kFp8Block128).ok());
  odd.o_lora_rank = 8;
  EXPECT_EQ(write("c", odd, WeightEncoding::kBf16).code(), StatusCode::kUnsupported);
  write_bytes(directory / "file", "x");
  EXPECT_EQ(write("file", small_config(), WeightEncoding::kBf16).code(), StatusCode::kBadInput);
  std::filesystem::create_directories(directory / "d/config.json/below");
  EXPECT_EQ(write("d", small_config(), WeightEncoding::kBf16).code(), StatusCode::kFailedPrecondition);
  const AllocationLimit limit(10'000);
  EXPECT_EQ(write("f", small_config(), WeightEncoding::kBf16).code(), StatusCode::kResourceExhausted);
}

TEST(SyntheticConfigTest, ReadsBackAsTheSameConfig) {
  for (const char* name : {"deepseek-v4-flash.json", "deepseek-v4-pro.json"}) {
    const auto source = ModelConfig::from_file(std::filesystem::path(DSV4RT_SOURCE_DIR) / "configs" / name);
    ASSERT_TRUE(source.ok()) << source.status().to_string();
    for (const auto encoding : {WeightEncoding::kBf16, WeightEncoding::kFp8Block128, WeightEncoding::kNvfp4}) {
      const std::string json = config_json(*source, encoding);
      const auto config = ModelConfig::from_json(json, "config.json");
      ASSERT_TRUE(config.ok()) << config.status().to_string() << json;
      for (const auto field :
           {&ModelConfig::hidden_size, &ModelConfig::num_hidden_layers, &ModelConfig::num_attention_heads,
            &ModelConfig::q_lora_rank, &ModelConfig::o_lora_rank, &ModelConfig::o_groups, &ModelConfig::sliding_window,
            &ModelConfig::index_n_heads, &ModelConfig::index_topk, &ModelConfig::max_position_embeddings}) {
        EXPECT_EQ((*config).*field, (*source).*field) << json;
      }
      EXPECT_EQ(config->rms_norm_eps, source->rms_norm_eps);
      EXPECT_EQ(config->rope_theta, source->rope_theta);
      EXPECT_EQ(config->compress_rope_theta, source->compress_rope_theta);
      EXPECT_EQ(config->compress_ratios, source->compress_ratios);
      ASSERT_EQ(config->rope_scaling.has_value(), source->rope_scaling.has_value());
      if (source->rope_scaling) {
        EXPECT_EQ(config->rope_scaling->factor, source->rope_scaling->factor);
        EXPECT_EQ(config->rope_scaling->beta_fast, source->rope_scaling->beta_fast);
        EXPECT_EQ(config->rope_scaling->original_max_position_embeddings,
                  source->rope_scaling->original_max_position_embeddings);
      }
      EXPECT_EQ(json.find("quantization_config") == std::string::npos, encoding == WeightEncoding::kBf16);
    }
  }
}

TEST(SyntheticValuesTest, HaveTheStatedMoments) {
  const SyntheticStream stream(1, "name");
  double sum = 0;
  double squares = 0;
  constexpr int kSamples = 100'000;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    const double value = stream.normal(i);
    ASSERT_LE(std::fabs(value), kMaxSyntheticNormal);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kSamples, 0.0, 0.02);
  EXPECT_NEAR(squares / kSamples, 1.0, 0.02);
  EXPECT_NE(stream.bits(0), stream.bits(1));
  EXPECT_NE(stream.bits(0), SyntheticStream(2, "name").bits(0));
  EXPECT_NE(stream.bits(0), SyntheticStream(1, "nam").bits(0));
}

// Files made by one build must be the files made by another.
TEST(SyntheticValuesTest, ArePinned) {
  const SyntheticStream stream(1, "layers.0.attn.wq_a.weight");
  EXPECT_EQ(stream.bits(0), 3484185080011130785u);
  EXPECT_EQ(stream.bits(1'000'000'000'000), 14514149327389840219u);
}

TEST(SyntheticValuesTest, BlocksDifferInGain) {
  const SyntheticMatrix matrix(3, "m", 128 * 64);
  std::vector<float> row(128 * 64);
  matrix.fill_row(5, row);
  std::map<int, int> gains;
  for (std::size_t block = 0; block < 64; ++block) {
    double squares = 0;
    for (std::size_t c = 0; c < 128; ++c) squares += row[block * 128 + c] * row[block * 128 + c];
    ++gains[static_cast<int>(std::lround(2 * std::sqrt(squares * 64)))];
  }
  EXPECT_EQ(gains.size(), 3U);
  for (const int gain : {1, 2, 3}) EXPECT_GT(gains[gain], 8) << gain;
}

}  // namespace
}  // namespace dsv4rt
