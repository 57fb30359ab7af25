#include "attention/workspace.h"

#include <algorithm>

#include "base/arithmetic.h"

namespace dsv4rt {
namespace {

constexpr std::size_t kAlignment = 256;

// Lays arrays one after the other; with a null base it only measures.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <class T>
  T* take(std::int64_t count) {
    const std::size_t at = used_;
    used_ = round_up(used_ + static_cast<std::size_t>(count) * sizeof(T), kAlignment);
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

// A last block of fewer than 128 values has a scale, too; nobody takes such rows as codes.
EncodedRows carve_encoded(std::int32_t tokens, std::int64_t width, Carver& carver) {
  EncodedRows rows{.width = width, .scale_stride = encoded_scale_stride(tokens)};
  rows.codes = carver.take<std::uint8_t>(tokens * width);
  rows.scales = carver.take<float>(ceil_div(width, kEncodedBlockValues) * rows.scale_stride);
  return rows;
}

Workspace carve(const WorkspaceShape& shape, Carver& carver) {
  const std::int64_t tokens = shape.max_tokens;
  Workspace ws;
  ws.q_latent = carver.take<bf16>(tokens * shape.q_lora_rank);
  ws.q = carver.take<bf16>(tokens * shape.heads * kHeadDim);
  ws.kv = carver.take<bf16>(tokens * kHeadDim);
  ws.staged_shape = block_shape(shape.row_format, shape.max_tokens);
  ws.staged_rows = carver.take<std::byte>(ws.staged_shape.block_bytes);
  ws.compressor_kv = carver.take<float>(tokens * shape.compressor_width);
  ws.compressor_score = carver.take<float>(tokens * shape.compressor_width);
  ws.index_kv = carver.take<float>(tokens * shape.index_width);
  ws.index_score = carver.take<float>(tokens * shape.index_width);
  ws.index_q = carver.take<bf16>(tokens * shape.index_heads * kIndexHeadDim);
  ws.index_head_weight = carver.take<bf16>(tokens * shape.index_heads);
  ws.topk_indices = carver.take<std::int32_t>(tokens * shape.top_k);
  ws.topk_count = carver.take<std::int32_t>(tokens);
  ws.o = carver.take<bf16>(tokens * shape.heads * kHeadDim);
  ws.o_latent = carver.take<bf16>(tokens * shape.output_rank);
  if (shape.has_codes) {
    ws.encoded_o = carve_encoded(shape.max_tokens, shape.heads * kHeadDim, carver);
    ws.encoded_latent = carve_encoded(shape.max_tokens, shape.output_rank, carver);
  }
  ws.rank_output = carver.take<float>(tokens * shape.rank_output_width);
  ws.packed_rows = carver.take<std::byte>(shape.packed_row_bytes);
  ws.packed_row_bytes = shape.packed_row_bytes;
  return ws;
}

}  // namespace

WorkspaceShape WorkspaceShape::of(const ModelConfig& config, const LayerSchedule& schedule, RowFormat row_format,
                                  std::int32_t max_tokens, std::int32_t ranks) {
  WorkspaceShape shape;
  shape.rank_output_width = ranks > 1 ? config.hidden_size : 0;
  shape.max_tokens = max_tokens;
  shape.q_lora_rank = config.q_lora_rank;
  shape.heads = config.num_attention_heads;
  shape.output_rank = config.o_groups * config.o_lora_rank;
  shape.row_format = row_format;
  for (const LayerSpec& layer : schedule.layers()) {
    if (layer.ratio == 0) continue;
    const std::int64_t columns = layer.overlap ? 2 : 1;
    shape.compressor_width = std::max(shape.compressor_width, columns * kHeadDim);
    if (!layer.indexer) continue;
    shape.index_width = columns * kIndexHeadDim;
    shape.index_heads = config.index_n_heads;
    shape.top_k = config.index_topk;
  }
  return shape;
}

// A piece's rows are a block of their own. Pieces have (tokens - 1) / ratio places and one more for every sequence in
// them; a cut adds one to the places of the sequence that it goes through.
std::int64_t packed_rows_bytes(const LayerSchedule& schedule, RowFormat row_format, IndexKeyFormat key_format,
                               std::int32_t max_tokens, std::int32_t max_sequences, std::int32_t ranks) {
  const std::int32_t pieces = 2 * ranks;
  std::int64_t most = 0;
  for (const LayerSpec& layer : schedule.layers()) {
    if (layer.ratio == 0) continue;
    const auto bytes_of = [&](auto format) {
      const std::int32_t places = max_tokens / layer.ratio + max_sequences + pieces;
      return block_shape(format, places).block_bytes + pieces * block_shape(format, 1).block_bytes;
    };
    most = std::max(most, bytes_of(row_format) + (layer.indexer ? bytes_of(key_format) : 0));
  }
  return most;
}

std::size_t workspace_bytes(const WorkspaceShape& shape) {
  Carver measure(nullptr);
  carve(shape, measure);
  return measure.used();
}

Workspace workspace_at(const WorkspaceShape& shape, std::byte* base) {
  Carver carver(base);
  return carve(shape, carver);
}

}  // namespace dsv4rt
