#include "checkpoint/tensor_names.h"

#include <array>
#include <cstddef>
#include <optional>

#include "base/enum_rows.h"
#include "base/message_text.h"

namespace dsv4rt {
namespace {

struct StemRow {
  AttentionTensor tensor;
  std::string_view released;
  std::string_view hugging_face;
  // What transformers saves instead; empty where it is the same.
  std::string_view saved_released = {};
  std::string_view saved_hugging_face = {};
};

// Listed in the order of the enumeration, so that a tensor is its own index.
constexpr std::array kStems = {
    StemRow{AttentionTensor::kAttnSink, "attn_sink", "sinks"},
    StemRow{AttentionTensor::kWqA, "wq_a", "q_a_proj"},
    StemRow{AttentionTensor::kQNorm, "q_norm", "q_a_norm"},
    StemRow{AttentionTensor::kWqB, "wq_b", "q_b_proj"},
    StemRow{AttentionTensor::kWkv, "wkv", "kv_proj"},
    StemRow{AttentionTensor::kKvNorm, "kv_norm", "kv_norm", "norm", "norm"},
    StemRow{AttentionTensor::kWoA, "wo_a", "o_a_proj"},
    StemRow{AttentionTensor::kWoB, "wo_b", "o_b_proj"},
    StemRow{AttentionTensor::kCompressorApe, "compressor.ape", "compressor.position_bias"},
    StemRow{AttentionTensor::kCompressorWkv, "compressor.wkv", "compressor.kv_proj"},
    StemRow{AttentionTensor::kCompressorWgate, "compressor.wgate", "compressor.gate_proj"},
    StemRow{AttentionTensor::kCompressorNorm, "compressor.norm", "compressor.kv_norm", {}, "compressor.norm"},
    StemRow{AttentionTensor::kIndexerWqB, "indexer.wq_b", "compressor.indexer.q_b_proj"},
    StemRow{AttentionTensor::kIndexerWeightsProj, "indexer.weights_proj", "compressor.indexer.scorer.weights_proj"},
    StemRow{AttentionTensor::kIndexerApe, "indexer.compressor.ape", "compressor.indexer.position_bias"},
    StemRow{AttentionTensor::kIndexerWkv, "indexer.compressor.wkv", "compressor.indexer.kv_proj"},
    StemRow{AttentionTensor::kIndexerWgate, "indexer.compressor.wgate", "compressor.indexer.gate_proj"},
    StemRow{AttentionTensor::kIndexerNorm,
            "indexer.compressor.norm",
            "compressor.indexer.kv_norm",
            {},
            "compressor.indexer.norm"},
};

static_assert(rows_match(kStems, &StemRow::tensor, AttentionTensor::kIndexerNorm));

bool consume(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// "model.layers.3.attn."
std::string layer_prefix(const NamingScheme& scheme, LayerId layer) {
  return (scheme.model_prefix ? "model.layers." : "layers.") + std::to_string(layer.value) +
         (scheme.hugging_face ? ".self_attn." : ".attn.");
}

// The scheme `name` follows if it is an attention tensor's name.
std::optional<NamingScheme> scheme_of(std::string_view name) {
  NamingScheme scheme;
  scheme.model_prefix = consume(name, "model.");
  if (!consume(name, "layers.")) return std::nullopt;
  const std::size_t digits = name.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos) return std::nullopt;
  name.remove_prefix(digits);
  scheme.hugging_face = consume(name, ".self_attn.");
  if (!scheme.hugging_face && !consume(name, ".attn.")) return std::nullopt;
  return scheme;
}

}  // namespace

std::string attention_stem(const NamingScheme& scheme, LayerId layer, AttentionTensor tensor) {
  const StemRow& row = kStems[static_cast<std::size_t>(tensor)];
  return layer_prefix(scheme, layer).append(scheme.hugging_face ? row.hugging_face : row.released);
}

std::string saved_attention_stem(const NamingScheme& scheme, LayerId layer, AttentionTensor tensor) {
  const StemRow& row = kStems[static_cast<std::size_t>(tensor)];
  const std::string_view saved = scheme.hugging_face ? row.saved_hugging_face : row.saved_released;
  return saved.empty() ? "" : layer_prefix(scheme, layer).append(saved);
}

std::string_view fp8_scale_suffix(const NamingScheme& scheme) noexcept {
  return scheme.hugging_face ? kHuggingFaceScaleSuffix : kReleasedScaleSuffix;
}

Result<NamingScheme> detect_naming(const TensorSource& source) {
  std::optional<NamingScheme> found;
  std::string_view example;
  for (std::size_t i = 0; i < source.tensor_count(); ++i) {
    const std::string_view name = source.tensor(i).name;
    const auto scheme = scheme_of(name);
    if (!scheme) continue;
    if (!found) {
      found = scheme;
      example = name;
    } else if (scheme->hugging_face != found->hugging_face || scheme->model_prefix != found->model_prefix) {
      return Status{StatusCode::kBadInput, shown(source.source_name()) + ": tensors " + quote(example) + " and " +
                                               quote(name) + " follow different naming schemes"};
    }
  }
  if (found) return *found;
  return Status{StatusCode::kNotFound,
                shown(source.source_name()) +
                    ": no attention tensors; expected names such as \"layers.0.attn.wq_a.weight\" or "
                    "\"model.layers.0.self_attn.q_a_proj.weight\""};
}

}  // namespace dsv4rt
