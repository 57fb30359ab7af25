// Uses the installed public headers only: reads a config and prints its layer schedule.
#include <cstdio>
#include <string>

#include "dsv4rt/model.h"

namespace {

constexpr const char* kConfig = R"({
  "model_type": "deepseek_v4", "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 8,
  "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 128, "o_lora_rank": 64,
  "o_groups": 2, "sliding_window": 128, "index_n_heads": 8, "index_head_dim": 128, "index_topk": 16,
  "rms_norm_eps": 1e-6, "rope_theta": 10000, "compress_rope_theta": 160000, "max_position_embeddings": 1048576,
  "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                   "original_max_position_embeddings": 65536},
  "compress_ratios": [0, 4, 128, 0]
})";

}  // namespace

int main() {
  const auto config = dsv4rt::ModelConfig::from_json(kConfig, "inline config");
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", config.status().to_string().c_str());
    return 1;
  }
  const auto schedule = dsv4rt::LayerSchedule::create(*config);
  if (!schedule.ok()) {
    std::fprintf(stderr, "%s\n", schedule.status().to_string().c_str());
    return 1;
  }
  std::string kinds;
  for (const dsv4rt::LayerSpec& layer : schedule->layers()) {
    kinds += std::string(dsv4rt::attention_kind_name(layer.kind)) + " ";
  }
  std::printf("%s\n", kinds.c_str());
  const auto refused = dsv4rt::ModelConfig::from_json("{}", "empty config");
  return kinds == "swa csa hca " && !refused.ok() && !refused.status().message().empty() ? 0 : 1;
}
