// The model that targets with an engine run: one layer of each kind, as small as shapes allow, random BF16 weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/bfloat16.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "checkpoint/synthetic_values.h"
#include "dsv4rt/engine.h"
#include "expect.h"
#include "support/temp_directory.h"

namespace dsv4rt::fuzz {

inline constexpr std::string_view kModelConfig = R"({
  "model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 3,
  "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 64,
  "o_groups": 1, "o_lora_rank": 16, "sliding_window": 8, "index_n_heads": 8, "index_head_dim": 128, "index_topk": 4,
  "rms_norm_eps": 1e-06, "rope_theta": 10000, "compress_rope_theta": 160000, "max_position_embeddings": 1048576,
  "compress_ratios": [0, 4, 128], "torch_dtype": "bfloat16"})";

// Its checkpoint, written once a process.
inline const std::filesystem::path& model_directory() {
  static const test::TempDirectory directory;
  static const std::filesystem::path path = [] {
    const ModelConfig config = ModelConfig::from_json(kModelConfig, "model of the fuzz targets").value();
    const LayerSchedule schedule = LayerSchedule::create(config).value();
    const Status written = write_synthetic_checkpoint(directory / "model", config, schedule.layers(),
                                                      {.encoding = WeightEncoding::kBf16, .seed = 5});
    expect(written.ok(), written.to_string());
    return directory / "model";
  }();
  return path;
}

inline EngineOptions model_options() {
  EngineOptions options;
  options.checkpoint = model_directory();
  options.threads = 1;
  options.limits = {.max_sequences = 3, .max_context_tokens = 512, .max_step_tokens = 160, .pool_tokens = 1024};
  options.draft_budget_tokens = 4;
  options.poison_freed_blocks = true;
  return options;
}

inline std::unique_ptr<Engine> make_engine(const EngineOptions& options = model_options()) {
  auto engine = Engine::create(options);
  expect(engine.ok(), engine.status().to_string());
  return std::move(*engine);
}

// Rows [tokens, 64] of stream `stream` from position `first` on.
inline std::vector<Bf16Bits> model_rows(std::uint64_t stream, std::int64_t first, std::int64_t tokens) {
  constexpr std::int64_t kHidden = 64;
  const SyntheticStream values(stream, "fuzzed rows");
  std::vector<Bf16Bits> rows(static_cast<std::size_t>(tokens * kHidden));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = to_bf16(values.normal(static_cast<std::uint64_t>(first * kHidden) + i)).bits;
  }
  return rows;
}

}  // namespace dsv4rt::fuzz
