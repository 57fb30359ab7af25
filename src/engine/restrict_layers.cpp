#include "engine/restrict_layers.h"

#include <string>

namespace dsv4rt {

Result<ModelConfig> restrict_layers(ModelConfig config, std::int32_t first, std::int32_t count) {
  const std::int64_t kept = count == 0 ? config.num_hidden_layers - first : count;
  if (first < 0 || kept < 1 || first + kept > config.num_hidden_layers) {
    return Status{StatusCode::kInvalidArgument, "layers: first_layer " + std::to_string(first) + ", layer_count " +
                                                    std::to_string(count) + "; the model has layers 0 to " +
                                                    std::to_string(config.num_hidden_layers - 1)};
  }
  config.num_hidden_layers = kept;
  const auto begin = config.compress_ratios.begin() + first;
  config.compress_ratios.assign(begin, begin + kept);
  return config;
}

}  // namespace dsv4rt
