// Checkpoints of random weights for tests, made once per program.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "checkpoint/synthetic_checkpoint.h"
#include "dsv4rt/engine.h"
#include "support/expect_ok.h"
#include "support/temp_directory.h"

namespace dsv4rt::test {

// Layers of a model in configs/.
struct SyntheticModel {
  std::string config;  // "tiny", "deepseek-v4-flash", "deepseek-v4-pro"
  std::int32_t first_layer = 0;
  std::int32_t layer_count = 1;
  WeightEncoding encoding = WeightEncoding::kFp8Block128;
  // Instead of the config's; 0: as it says.
  std::int64_t heads = 0;
  std::int64_t index_heads = 0;
  std::int64_t o_groups = 0;
  std::int64_t o_lora_rank = 0;

  // Directory of the checkpoint; written at first use, removed when the program ends.
  [[nodiscard]] const std::filesystem::path& directory() const {
    static const TempDirectory root;
    static std::map<std::string, std::filesystem::path> made;
    const std::string name = config + "-" + std::to_string(first_layer) + "-" + std::to_string(layer_count) + "-" +
                             std::to_string(static_cast<int>(encoding)) + "-" + std::to_string(heads) + "-" +
                             std::to_string(index_heads) + "-" + std::to_string(o_groups) + "-" +
                             std::to_string(o_lora_rank);
    const auto [entry, is_new] = made.try_emplace(name, root / name);
    if (is_new) {
      const auto path = std::filesystem::path(DSV4RT_SOURCE_DIR) / "configs" / (config + ".json");
      ModelConfig model = ModelConfig::from_file(path).value();
      if (heads > 0) model.num_attention_heads = heads;
      if (index_heads > 0) model.index_n_heads = index_heads;
      if (o_groups > 0) model.o_groups = o_groups;
      if (o_lora_rank > 0) model.o_lora_rank = o_lora_rank;
      const LayerSchedule schedule = LayerSchedule::create(model).value();
      const auto layers =
          schedule.layers().subspan(static_cast<std::size_t>(first_layer), static_cast<std::size_t>(layer_count));
      EXPECT_OK(write_synthetic_checkpoint(entry->second, model, layers,
                                           {.encoding = encoding, .seed = 7, .max_shard_bytes = 0}));
    }
    return entry->second;
  }

  // Everything but limits.
  [[nodiscard]] EngineOptions options() const {
    EngineOptions options;
    options.checkpoint = directory();
    options.first_layer = first_layer;
    options.layer_count = layer_count;
    return options;
  }
};

}  // namespace dsv4rt::test
