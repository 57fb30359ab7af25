// ModelConfig and LayerSchedule: what the checkpoint says the attention layers are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4rt/export.h"
#include "dsv4rt/profile.h"
#include "dsv4rt/row_geometry.h"
#include "dsv4rt/status.h"
#include "dsv4rt/types.h"

namespace dsv4rt {

// YaRN interpolation of the rotary frequencies (Hugging Face `rope_scaling`, type "yarn").
struct YarnScaling {
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::int64_t original_max_position_embeddings = 0;
};

// The attention-relevant part of a Hugging Face `config.json` (or of DeepSeek's inference-style
// config). Field names are the Hugging Face keys.
struct ModelConfig {
  std::int64_t hidden_size = 0;        // d
  std::int64_t num_hidden_layers = 0;  // attention layers; never derived from compress_ratios
  std::int64_t num_attention_heads = 0;
  std::int64_t q_lora_rank = 0;
  std::int64_t o_lora_rank = 0;
  std::int64_t o_groups = 0;
  std::int64_t sliding_window = 0;  // raw entries every layer sees, the current one included
  std::int64_t index_n_heads = 0;
  std::int64_t index_topk = 0;
  double rms_norm_eps = 0.0;
  double rope_theta = 0.0;
  double compress_rope_theta = 0.0;
  std::optional<YarnScaling> rope_scaling;
  std::int64_t max_position_embeddings = 0;
  // One ratio per layer, then the entries of draft (MTP) blocks, which are ignored.
  std::vector<std::int32_t> compress_ratios;

  // Reads and validates `path`. Errors name the file, the key, its value and what is accepted.
  DSV4RT_EXPORT static Result<ModelConfig> from_file(const std::filesystem::path& path);
  // The same for JSON text; `source` stands for the file in messages.
  DSV4RT_EXPORT static Result<ModelConfig> from_json(std::string_view text, std::string_view source);
  // Consistency of the fields; what from_json runs last. `source` as above.
  [[nodiscard]] DSV4RT_EXPORT Status validate(std::string_view source) const;
};

enum class AttentionKind : std::uint8_t {
  kSlidingWindow,      // "swa": window only
  kCompressedSparse,   // "csa": window + top-k of overlapping compressed rows, own indexer
  kHeavilyCompressed,  // "hca": window + every compressed row
};
DSV4RT_EXPORT std::string_view attention_kind_name(AttentionKind kind) noexcept;  // "swa", "csa", "hca"

enum class RopeChoice : std::uint8_t {
  kPlain,       // rope_theta, no YaRN
  kCompressed,  // compress_rope_theta with YaRN
};

// Everything that tells one layer from another. Code asks these fields; no literal layer number or
// ratio exists outside the schedule's construction.
struct LayerSpec {
  LayerId id;
  AttentionKind kind = AttentionKind::kSlidingWindow;
  std::int32_t ratio = 0;  // tokens per compressed row; 0: no compressor
  bool overlap = false;    // the compressor also pools the previous block
  bool indexer = false;    // rows are selected by a lightning indexer, otherwise all are read
  RopeChoice rope = RopeChoice::kPlain;
};

// The per-layer plan of a model. Immutable.
class LayerSchedule {
 public:
  // Errors: a ratio that is not supported, naming layer, value and the accepted ones.
  DSV4RT_EXPORT static Result<LayerSchedule> create(const ModelConfig& config);

  [[nodiscard]] std::span<const LayerSpec> layers() const noexcept { return layers_; }
  [[nodiscard]] const LayerSpec& layer(LayerId id) const { return layers_.at(static_cast<std::size_t>(id.value)); }
  // The distinct ratios > 0, ascending: the "ratio classes" of a step's metadata.
  [[nodiscard]] std::span<const std::int32_t> ratios() const noexcept { return ratios_; }
  // Index of `ratio` in ratios(), or -1 for 0.
  [[nodiscard]] DSV4RT_EXPORT int ratio_class(std::int32_t ratio) const noexcept;
  // Least common multiple of the ratios (1 without any): sequence lengths at which every
  // compressor's current block is empty.
  [[nodiscard]] DSV4RT_EXPORT std::int64_t alignment_tokens() const noexcept;

 private:
  std::vector<LayerSpec> layers_;
  std::vector<std::int32_t> ratios_;
};

}  // namespace dsv4rt
