// What the fields of a ModelConfig may be. Upper limits keep every size computed from a config small
// enough to be checked before it is used; multiples are what the kernels tile by.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "dsv4rt/model.h"

namespace dsv4rt {

inline constexpr std::int64_t kMaxModelPositions = std::int64_t{16} << 20;

// An integer field, its names, and its limits (both inclusive).
struct IntegerField {
  std::int64_t ModelConfig::*member;
  std::string_view key;            // Hugging Face
  std::string_view inference_key;  // DeepSeek's inference config; equal to `key` where it has the same name
  std::int64_t minimum;
  std::int64_t maximum;
  std::int64_t multiple;
};
std::span<const IntegerField> integer_fields() noexcept;

struct RealLimits {
  double minimum;
  double maximum;
};
inline constexpr RealLimits kNormEpsLimits{1e-30, 0.1};
inline constexpr RealLimits kRopeThetaLimits{2.0, 1e12};
inline constexpr RealLimits kYarnFactorLimits{1.0, 1e6};
inline constexpr RealLimits kYarnBetaLimits{1e-3, 1e6};
inline constexpr IntegerField kYarnOriginalPositions{
    nullptr, "rope_scaling.original_max_position_embeddings", "original_seq_len", 1, kMaxModelPositions, 1};

// `key` is the name to blame: the one the value was written under.
// kBadInput below the minimum (or not finite), kUnsupported above the maximum or off the multiple.
Status check_integer(const IntegerField& field, std::string_view key, std::int64_t value, std::string_view source);
Status check_real(const RealLimits& limits, std::string_view key, double value, std::string_view source);

// There is a ratio for each of num_hidden_layers (itself within limits), and each has a meaning.
Status check_layer_ratios(const ModelConfig& config, std::string_view source);

}  // namespace dsv4rt
