#include <nlohmann/json.hpp>

#include "base/message_text.h"
#include "checkpoint/synthetic_checkpoint.h"

namespace dsv4rt {

std::string config_json(const ModelConfig& config, WeightEncoding encoding) {
  nlohmann::ordered_json json = {
      {"model_type", "deepseek_v4"},
      {"architectures", {"DeepseekV4ForCausalLM"}},
      {"hidden_size", config.hidden_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", 1},
      {"head_dim", kHeadDim},
      {"qk_rope_head_dim", kRopeDim},
      {"q_lora_rank", config.q_lora_rank},
      {"o_groups", config.o_groups},
      {"o_lora_rank", config.o_lora_rank},
      {"sliding_window", config.sliding_window},
      {"index_n_heads", config.index_n_heads},
      {"index_head_dim", kIndexHeadDim},
      {"index_topk", config.index_topk},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_theta", config.rope_theta},
      {"compress_rope_theta", config.compress_rope_theta},
      {"max_position_embeddings", config.max_position_embeddings},
      {"compress_ratios", config.compress_ratios},
      {"torch_dtype", "bfloat16"},
  };
  if (config.rope_scaling) {
    const YarnScaling& yarn = *config.rope_scaling;
    json["rope_scaling"] = {{"type", "yarn"},
                            {"factor", yarn.factor},
                            {"beta_fast", yarn.beta_fast},
                            {"beta_slow", yarn.beta_slow},
                            {"original_max_position_embeddings", yarn.original_max_position_embeddings}};
  }
  if (encoding == WeightEncoding::kFp8Block128) {
    json["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"scale_fmt", "ue8m0"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {128, 128}}};
  } else if (encoding == WeightEncoding::kNvfp4) {
    json["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"group_size", 16}};
  }
  return json.dump(2) + "\n";
}

Result<WeightEncoding> weight_encoding_from_name(std::string_view name) {
  if (name == "bf16") return WeightEncoding::kBf16;
  if (name == "fp8") return WeightEncoding::kFp8Block128;
  if (name == "nvfp4") return WeightEncoding::kNvfp4;
  return Status{StatusCode::kInvalidArgument,
                "encoding '" + printable(name) + "' is unknown; accepted: bf16, fp8, nvfp4"};
}

}  // namespace dsv4rt
