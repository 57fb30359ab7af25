// The names that checkpoints give to the tensors of an attention layer.
//
//   released       [model.]layers.<N>.attn.<stem>
//   Hugging Face   [model.]layers.<N>.self_attn.<stem>      (transformers, model type deepseek_v4)
//
// A linear or norm is stored as "<stem>.weight"; sinks and position biases as "<stem>" itself.
//
// transformers 5.23 renames norms on saving that it does not name so itself, and reads them back: attn.norm,
// self_attn.norm, self_attn.compressor.norm and self_attn.compressor.indexer.norm for ...kv_norm.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/tensor_source.h"
#include "dsv4rt/status.h"
#include "dsv4rt/types.h"

namespace dsv4rt {

enum class AttentionTensor : std::uint8_t {
  kAttnSink,
  kWqA,
  kQNorm,
  kWqB,
  kWkv,
  kKvNorm,
  kWoA,
  kWoB,
  kCompressorApe,
  kCompressorWkv,
  kCompressorWgate,
  kCompressorNorm,
  kIndexerWqB,
  kIndexerWeightsProj,
  kIndexerApe,
  kIndexerWkv,
  kIndexerWgate,
  kIndexerNorm,
};

// How one checkpoint spells the names.
struct NamingScheme {
  bool hugging_face = false;
  bool model_prefix = false;  // names begin with "model."
};

// "layers.3.attn.wq_a": the name without ".weight" or a scale's suffix.
std::string attention_stem(const NamingScheme& scheme, LayerId layer, AttentionTensor tensor);
// The stem that transformers writes in its place; empty where it writes the same.
std::string saved_attention_stem(const NamingScheme& scheme, LayerId layer, AttentionTensor tensor);

// Suffix of the block scales of FP8 linears that the scheme's own writer uses: ".scale" or
// ".weight_scale_inv". Readers accept either under both schemes.
std::string_view fp8_scale_suffix(const NamingScheme& scheme) noexcept;
inline constexpr std::string_view kReleasedScaleSuffix = ".scale";
inline constexpr std::string_view kHuggingFaceScaleSuffix = ".weight_scale_inv";

// Suffixes of NVFP4 linears in ModelOpt form.
inline constexpr std::string_view kWeightSuffix = ".weight";
inline constexpr std::string_view kNvfp4ScaleSuffix = ".weight_scale";
inline constexpr std::string_view kNvfp4GlobalScaleSuffix = ".weight_scale_2";
inline constexpr std::string_view kNvfp4InputScaleSuffix = ".input_scale";

// The scheme of the attention tensors. Errors: kNotFound when it has none; kBadInput when
// names of two schemes are mixed (quotes one of each).
Result<NamingScheme> detect_naming(const TensorSource& source);

}  // namespace dsv4rt
