// The weights of one attention layer, found, checked and borrowed from a checkpoint.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bfloat16.h"
#include "checkpoint/host_linear.h"
#include "dsv4rt/model.h"

namespace dsv4rt {

// A compressor's weights. width = 2 * dim with overlap (previous | current columns), else dim.
struct HostCompressor {
  HostLinear wkv;              // [width, d], BF16
  HostLinear wgate;            // [width, d], BF16
  std::span<const float> ape;  // [ratio, width]
  std::span<const bf16> norm;  // [dim]
};

struct HostIndexer {
  HostLinear wq_b;            // [index_n_heads * 128, q_lora_rank]
  HostLinear weights_proj;    // [index_n_heads, d], BF16
  HostCompressor compressor;  // dim 128
};

// Shapes: d hidden, h heads, r q_lora_rank, g o_groups, l o_lora_rank. Matrices live as long as the
// TensorSource; everything else as long as this object or a copy of it.
struct HostAttentionWeights {
  LayerSpec spec;
  std::span<const float> attn_sink;          // [h]
  HostLinear wq_a;                           // [r, d]
  std::span<const bf16> q_norm;              // [r]
  HostLinear wq_b;                           // [h * 512, r]
  HostLinear wkv;                            // [512, d]
  std::span<const bf16> kv_norm;             // [512]
  HostLinear wo_a;                           // [g * l, h * 512 / g]; activation rounding: none
  HostLinear wo_b;                           // [d, g * l]
  std::optional<HostCompressor> compressor;  // ratio > 0
  std::optional<HostIndexer> indexer;        // spec.indexer
  // What the views of converted or copied tensors point into; shared by copies.
  std::vector<std::shared_ptr<const void>> owned;
};

}  // namespace dsv4rt
