// Configs that the tests of this folder start from.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "dsv4rt/model.h"

namespace dsv4rt::test {

inline std::filesystem::path config_path(const std::string& name) {
  return std::filesystem::path(DSV4RT_SOURCE_DIR) / "configs" / name;
}

// Hugging Face keys; 4 layers of every kind and one draft entry.
inline nlohmann::json hugging_face_config() {
  return {{"model_type", "deepseek_v4"},
          {"hidden_size", 128},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 1},
          {"head_dim", 512},
          {"qk_rope_head_dim", 64},
          {"q_lora_rank", 128},
          {"o_groups", 2},
          {"o_lora_rank", 64},
          {"sliding_window", 128},
          {"index_n_heads", 8},
          {"index_head_dim", 128},
          {"index_topk", 16},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000},
          {"compress_rope_theta", 160000},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 16},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"original_max_position_embeddings", 65536}}},
          {"max_position_embeddings", 1048576},
          {"compress_ratios", {0, 4, 128, 4, 0}}};
}

// The same model in DeepSeek's inference-style keys.
inline nlohmann::json inference_config() {
  return {{"dim", 128},
          {"n_layers", 4},
          {"n_heads", 8},
          {"head_dim", 512},
          {"rope_head_dim", 64},
          {"q_lora_rank", 128},
          {"o_groups", 2},
          {"o_lora_rank", 64},
          {"window_size", 128},
          {"index_n_heads", 8},
          {"index_head_dim", 128},
          {"index_topk", 16},
          {"norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"compress_rope_theta", 160000.0},
          {"rope_factor", 16},
          {"original_seq_len", 65536},
          {"beta_fast", 32},
          {"beta_slow", 1},
          {"max_seq_len", 1048576},
          {"compress_ratios", {0, 4, 128, 4, 0}}};
}

// The same model as newer Hugging Face releases write it: layer types and two sets of rope values.
inline nlohmann::json layer_types_config() {
  nlohmann::json config = hugging_face_config();
  for (const char* key : {"compress_ratios", "rope_scaling", "rope_theta", "compress_rope_theta", "qk_rope_head_dim"}) {
    config.erase(key);
  }
  config["layer_types"] = {"sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                           "compressed_sparse_attention"};
  config["compress_rates"] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  config["rope_parameters"] = {
      {"main", {{"rope_type", "default"}, {"rope_theta", 10000}, {"partial_rotary_factor", 0.125}}},
      {"compress",
       {{"rope_type", "yarn"},
        {"rope_theta", 160000},
        {"partial_rotary_factor", 0.125},
        {"factor", 16},
        {"beta_fast", 32},
        {"beta_slow", 1},
        {"attention_factor", 1.0},
        {"original_max_position_embeddings", 65536}}}};
  return config;
}

inline Result<ModelConfig> parse(const nlohmann::json& config) {
  return ModelConfig::from_json(config.dump(), "sample.json");
}

}  // namespace dsv4rt::test
