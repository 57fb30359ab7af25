#include "attention/step_shapes.h"

#include <algorithm>

namespace dsv4rt {
namespace {

// Everything that reads x: queries and latents, and per compressor kv and gate, for the indexer's with head weights.
LinearGroupShape input_projections(const ModelConfig& config, const LayerSpec& layer) {
  LinearGroupShape group{.matrices = 2,
                         .inputs = 1,
                         .in_features = config.hidden_size,
                         .out_features = std::max(config.q_lora_rank, std::int64_t{kHeadDim})};
  if (layer.ratio > 0) {
    group.matrices += 2;
    group.out_features = std::max(group.out_features, std::int64_t{layer.overlap ? 2 : 1} * kHeadDim);
  }
  if (layer.indexer) group.matrices += 3;
  return group;
}

// Queries of attention and of the indexer from the same latent.
LinearGroupShape query_projections(const ModelConfig& config, const LayerSpec& layer) {
  LinearGroupShape group{.matrices = 1,
                         .inputs = 1,
                         .in_features = config.q_lora_rank,
                         .out_features = config.num_attention_heads * kHeadDim};
  if (layer.indexer) {
    group.matrices += 1;
    group.out_features = std::max(group.out_features, config.index_n_heads * kIndexHeadDim);
  }
  return group;
}

}  // namespace

StepShapes step_shapes(const ModelConfig& config, const LayerSchedule& schedule, const CacheLimits& limits) {
  StepShapes shapes{.max_tokens = limits.max_step_tokens,
                    .max_context_tokens = limits.max_context_tokens,
                    .heads = static_cast<std::int32_t>(config.num_attention_heads),
                    .window = config.sliding_window,
                    .linears = {},
                    .compressed = {}};
  for (const LayerSpec& layer : schedule.layers()) {
    shapes.linears.push_back(input_projections(config, layer));
    shapes.linears.push_back(query_projections(config, layer));
    if (layer.ratio == 0) continue;
    shapes.compressed.push_back({.ratio = layer.ratio,
                                 .index_heads = layer.indexer ? static_cast<std::int32_t>(config.index_n_heads) : 0,
                                 .top_k = layer.indexer ? config.index_topk : 0});
  }
  // The grouped low-rank output projection: every group reads its own heads.
  shapes.linears.push_back({.matrices = config.o_groups,
                            .inputs = config.o_groups,
                            .in_features = config.num_attention_heads * kHeadDim / config.o_groups,
                            .out_features = config.o_lora_rank});
  shapes.linears.push_back({.matrices = 1,
                            .inputs = 1,
                            .in_features = config.o_groups * config.o_lora_rank,
                            .out_features = config.hidden_size});
  return shapes;
}

}  // namespace dsv4rt
