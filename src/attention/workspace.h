// Intermediate buffers of a step, shared by all layers: sized once for the largest step.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "backend/ops.h"
#include "dsv4rt/model.h"

namespace dsv4rt {

// What the workspace is sized for.
struct WorkspaceShape {
  std::int32_t max_tokens = 0;        // T
  std::int64_t q_lora_rank = 0;       // r
  std::int64_t heads = 0;             // h
  std::int64_t output_rank = 0;       // o_groups * o_lora_rank
  std::int64_t compressor_width = 0;  // widest main compressor of the layers, 0 without any
  std::int64_t index_width = 0;       // indexer compressor, 0 without any
  std::int64_t index_heads = 0;       // 0 without indexer
  std::int64_t top_k = 0;
  std::int64_t rank_output_width = 0;  // d with tensor parallelism, 0 without
  std::int64_t packed_row_bytes = 0;   // packed_rows_bytes() with context parallelism, 0 without
  bool has_codes = false;              // outputs of attention may be wanted as codes (Ops::takes_encoded_rows)
  RowFormat row_format = RowFormat::kFp8DsMla;

  // `config` is the rank's part (shard_config) of `ranks` ranks.
  static WorkspaceShape of(const ModelConfig& config, const LayerSchedule& schedule, RowFormat row_format,
                           std::int32_t max_tokens, std::int32_t ranks = 1);
};

// Views into one buffer; T rows each.
struct Workspace {
  bf16* q_latent = nullptr;          // [T, r]
  bf16* q = nullptr;                 // [T, h, 512]
  bf16* kv = nullptr;                // [T, 512]
  std::byte* staged_rows = nullptr;  // one block of T window rows
  BlockShape staged_shape;
  float* compressor_kv = nullptr;        // [T, compressor_width]
  float* compressor_score = nullptr;     // [T, compressor_width]
  float* index_kv = nullptr;             // [T, index_width]
  float* index_score = nullptr;          // [T, index_width]
  bf16* index_q = nullptr;               // [T, index_heads, 128]
  bf16* index_head_weight = nullptr;     // [T, index_heads]
  std::int32_t* topk_indices = nullptr;  // [T, top_k]
  std::int32_t* topk_count = nullptr;    // [T]
  bf16* o = nullptr;                     // [T, h, 512]
  EncodedRows encoded_o;                 // the same as codes; none without has_codes
  bf16* o_latent = nullptr;              // [T, output_rank]
  EncodedRows encoded_latent;            // the same as codes; none without has_codes
  float* rank_output = nullptr;          // [T, rank_output_width]: what this rank adds to the layer's output
  std::byte* packed_rows = nullptr;      // finished rows on their way between ranks, packed_row_bytes
  std::int64_t packed_row_bytes = 0;
};

// Bytes that the finished rows of a step of up to max_tokens tokens of max_sequences sequences take, packed piece by
// piece for `ranks` ranks: the most of any layer.
std::int64_t packed_rows_bytes(const LayerSchedule& schedule, RowFormat row_format, IndexKeyFormat key_format,
                               std::int32_t max_tokens, std::int32_t max_sequences, std::int32_t ranks);

std::size_t workspace_bytes(const WorkspaceShape& shape);
// `base` holds workspace_bytes(shape) bytes, 256-byte aligned.
Workspace workspace_at(const WorkspaceShape& shape, std::byte* base);

}  // namespace dsv4rt
