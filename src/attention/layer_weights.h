// The weights of one attention layer in backend memory.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "checkpoint/attention_weights.h"
#include "model/tensor_shard.h"

namespace dsv4rt {

struct CompressorWeights {
  std::unique_ptr<PackedLinear> wkv;    // d -> width
  std::unique_ptr<PackedLinear> wgate;  // d -> width
  Buffer ape;                           // float [ratio, width]
  Buffer norm;                          // bf16 [dim]
};

struct IndexerWeights {
  std::unique_ptr<PackedLinear> wq_b;          // r -> index heads * 128
  std::unique_ptr<PackedLinear> weights_proj;  // d -> index heads
  CompressorWeights compressor;
};

struct LayerWeights {
  Buffer attn_sink;                                 // float [h]; of several ranks, h and g are the rank's
  std::unique_ptr<PackedLinear> wq_a;               // d -> r
  Buffer q_norm;                                    // bf16 [r]
  std::unique_ptr<PackedLinear> wq_b;               // r -> h * 512
  std::unique_ptr<PackedLinear> wkv;                // d -> 512
  Buffer kv_norm;                                   // bf16 [512]
  std::vector<std::unique_ptr<PackedLinear>> wo_a;  // one per group: h * 512 / g -> o_lora_rank
  std::unique_ptr<PackedLinear> wo_b;               // g * o_lora_rank -> d
  std::optional<CompressorWeights> compressor;
  std::optional<IndexerWeights> indexer;

  // Every matrix.
  [[nodiscard]] std::vector<const PackedLinear*> linears() const;
  // Bytes of every matrix and vector as held.
  [[nodiscard]] std::int64_t bytes() const;
};

// Packs and uploads; the host views are not needed afterwards. `config` and `host` are the rank's (shard_config).
Result<LayerWeights> upload_layer_weights(Backend& backend, const ModelConfig& config, const HostAttentionWeights& host,
                                          const TensorShard& shard = {});

}  // namespace dsv4rt
