#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "dsv4rt/model.h"
#include "unit/model/sample_configs.h"

namespace dsv4rt {
namespace {

using test::config_path;
using test::parse;

// Field by field: ModelConfig has no operator==, and a failure should name the field.
void expect_equal(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.num_hidden_layers, b.num_hidden_layers);
  EXPECT_EQ(a.num_attention_heads, b.num_attention_heads);
  EXPECT_EQ(a.q_lora_rank, b.q_lora_rank);
  EXPECT_EQ(a.o_lora_rank, b.o_lora_rank);
  EXPECT_EQ(a.o_groups, b.o_groups);
  EXPECT_EQ(a.sliding_window, b.sliding_window);
  EXPECT_EQ(a.index_n_heads, b.index_n_heads);
  EXPECT_EQ(a.index_topk, b.index_topk);
  EXPECT_EQ(a.rms_norm_eps, b.rms_norm_eps);
  EXPECT_EQ(a.rope_theta, b.rope_theta);
  EXPECT_EQ(a.compress_rope_theta, b.compress_rope_theta);
  EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
  ASSERT_EQ(a.rope_scaling.has_value(), b.rope_scaling.has_value());
  if (!a.rope_scaling) return;
  EXPECT_EQ(a.rope_scaling->factor, b.rope_scaling->factor);
  EXPECT_EQ(a.rope_scaling->beta_fast, b.rope_scaling->beta_fast);
  EXPECT_EQ(a.rope_scaling->beta_slow, b.rope_scaling->beta_slow);
  EXPECT_EQ(a.rope_scaling->original_max_position_embeddings, b.rope_scaling->original_max_position_embeddings);
}

TEST(ModelConfig, ReadsFlash) {
  const auto config = ModelConfig::from_file(config_path("deepseek-v4-flash.json"));
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->hidden_size, 4096);
  EXPECT_EQ(config->num_hidden_layers, 43);
  EXPECT_EQ(config->num_attention_heads, 64);
  EXPECT_EQ(config->q_lora_rank, 1024);
  EXPECT_EQ(config->o_lora_rank, 1024);
  EXPECT_EQ(config->o_groups, 8);
  EXPECT_EQ(config->sliding_window, 128);
  EXPECT_EQ(config->index_n_heads, 64);
  EXPECT_EQ(config->index_topk, 512);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_EQ(config->rope_theta, 1e4);
  EXPECT_EQ(config->compress_rope_theta, 1.6e5);
  EXPECT_EQ(config->max_position_embeddings, 1048576);
  EXPECT_EQ(config->compress_ratios.size(), 44u);
  ASSERT_TRUE(config->rope_scaling.has_value());
  EXPECT_EQ(config->rope_scaling->factor, 16.0);
  EXPECT_EQ(config->rope_scaling->beta_fast, 32.0);
  EXPECT_EQ(config->rope_scaling->beta_slow, 1.0);
  EXPECT_EQ(config->rope_scaling->original_max_position_embeddings, 65536);
}

TEST(ModelConfig, ReadsPro) {
  const auto config = ModelConfig::from_file(config_path("deepseek-v4-pro.json"));
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->hidden_size, 7168);
  EXPECT_EQ(config->num_hidden_layers, 61);
  EXPECT_EQ(config->num_attention_heads, 128);
  EXPECT_EQ(config->q_lora_rank, 1536);
  EXPECT_EQ(config->o_groups, 16);
  EXPECT_EQ(config->index_topk, 1024);
  EXPECT_EQ(config->compress_ratios.size(), 62u);
}

TEST(ModelConfig, ReadsTiny) {
  const auto config = ModelConfig::from_file(config_path("tiny.json"));
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  expect_equal(*config, *parse(test::hugging_face_config()));
}

TEST(ModelConfig, InferenceStyleKeysMeanTheSame) {
  const auto expected = parse(test::hugging_face_config());
  const auto config = parse(test::inference_config());
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  expect_equal(*config, *expected);
  EXPECT_EQ(config->compress_ratios, expected->compress_ratios);
}

TEST(ModelConfig, LayerTypesAndRopeParametersMeanTheSame) {
  const auto expected = parse(test::hugging_face_config());
  const auto config = parse(test::layer_types_config());
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  expect_equal(*config, *expected);
  EXPECT_EQ(config->compress_ratios, (std::vector<std::int32_t>{0, 4, 128, 4}));
}

TEST(ModelConfig, FlatRopeParametersBelongToTheCompressedLayers) {
  auto json = test::hugging_face_config();
  json["rope_parameters"] = json["rope_scaling"];
  json["rope_parameters"]["rope_type"] = "yarn";
  json.erase("rope_scaling");
  const auto config = parse(json);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  expect_equal(*config, *parse(test::hugging_face_config()));
}

TEST(ModelConfig, BothSpellingsTogetherAreAcceptedWhereTheyAgree) {
  auto json = test::hugging_face_config();
  json.update(test::inference_config());
  json.update(test::layer_types_config());
  const auto config = parse(json);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  expect_equal(*config, *parse(test::hugging_face_config()));
}

TEST(ModelConfig, InferenceStyleDefaults) {
  auto json = test::inference_config();
  json.erase("norm_eps");
  json.erase("max_seq_len");
  const auto config = parse(json);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_EQ(config->max_position_embeddings, 16 * 65536);
}

TEST(ModelConfig, AbsentScalingMeansNoYarn) {
  auto json = test::hugging_face_config();
  json["rope_scaling"] = nullptr;
  EXPECT_FALSE(parse(json)->rope_scaling.has_value());
  json.erase("rope_scaling");
  EXPECT_FALSE(parse(json)->rope_scaling.has_value());
  json["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_FALSE(parse(json)->rope_scaling.has_value());
  auto inference = test::inference_config();
  inference["original_seq_len"] = 0;
  EXPECT_FALSE(parse(inference)->rope_scaling.has_value());
}

TEST(ModelConfig, IntegersMayBeWrittenAsFloatsWithoutFraction) {
  auto json = test::hugging_face_config();
  json["hidden_size"] = 128.0;
  const auto config = parse(json);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->hidden_size, 128);
}

TEST(ModelConfig, ValidateChecksFieldsSetByHand) {
  const ModelConfig good = *parse(test::hugging_face_config());
  EXPECT_TRUE(good.validate("by hand").ok());
  ModelConfig bad = good;
  bad.rms_norm_eps = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(bad.validate("by hand").code(), StatusCode::kBadInput);
  bad = good;
  bad.rope_scaling->factor = std::numeric_limits<double>::infinity();
  EXPECT_EQ(bad.validate("by hand").code(), StatusCode::kBadInput);
  bad = good;
  bad.o_groups = 3;
  EXPECT_NE(bad.validate("by hand").message().find("by hand: o_groups = 3"), std::string::npos);
  EXPECT_EQ(ModelConfig{}.validate("empty").code(), StatusCode::kBadInput);
}

TEST(ModelConfig, FileErrorsNameTheFile) {
  const auto missing = ModelConfig::from_file(config_path("no-such.json"));
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("no-such.json"), std::string::npos);

  const auto folder = ModelConfig::from_file(config_path(""));
  EXPECT_EQ(folder.status().code(), StatusCode::kBadInput);
  EXPECT_NE(folder.status().message().find("not a regular file"), std::string::npos);

  const auto device = ModelConfig::from_file("/dev/zero");
  EXPECT_EQ(device.status().code(), StatusCode::kBadInput);
}

// A sparse file: the size must be refused before anything of that size is allocated.
TEST(ModelConfig, OversizedFileIsRefusedUnread) {
  const auto path = std::filesystem::temp_directory_path() / ("dsv4rt_oversized_" + std::to_string(::getpid()));
  { std::ofstream(path) << "{"; }
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);
  const auto config = ModelConfig::from_file(path);
  std::filesystem::remove(path);
  EXPECT_EQ(config.status().code(), StatusCode::kBadInput);
  EXPECT_NE(config.status().message().find("1099511627776 bytes"), std::string::npos) << config.status().message();
}

}  // namespace
}  // namespace dsv4rt
