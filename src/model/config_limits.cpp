#include "model/config_limits.h"

#include <array>
#include <cmath>
#include <sstream>
#include <string>

#include "base/message_text.h"
#include "model/ratio_rules.h"

namespace dsv4rt {
namespace {

constexpr std::array<IntegerField, 10> kIntegerFields{{
    {&ModelConfig::hidden_size, "hidden_size", "dim", 64, 65536, 64},
    {&ModelConfig::num_hidden_layers, "num_hidden_layers", "n_layers", 1, 1024, 1},
    {&ModelConfig::num_attention_heads, "num_attention_heads", "n_heads", 8, 128, 8},
    {&ModelConfig::q_lora_rank, "q_lora_rank", "q_lora_rank", 64, 16384, 64},
    {&ModelConfig::o_lora_rank, "o_lora_rank", "o_lora_rank", 16, 16384, 16},
    {&ModelConfig::o_groups, "o_groups", "o_groups", 1, 128, 1},
    {&ModelConfig::sliding_window, "sliding_window", "window_size", 1, 4096, 1},
    {&ModelConfig::index_n_heads, "index_n_heads", "index_n_heads", 8, 128, 8},
    {&ModelConfig::index_topk, "index_topk", "index_topk", 1, 65536, 1},
    {&ModelConfig::max_position_embeddings, "max_position_embeddings", "max_seq_len", 1, kMaxModelPositions, 1},
}};

constexpr const IntegerField& kLayerCount = kIntegerFields[1];

std::string show(double value) {
  std::ostringstream text;
  text.precision(17);
  text << value;
  return text.str();
}

Status refuse(StatusCode code, std::string_view source, std::string_view key, const std::string& value,
              const std::string& explanation) {
  std::string message = shown(source);
  message.append(": ").append(key).append(" = ").append(value).append(": ").append(explanation);
  return {code, message};
}

Status check_yarn(const YarnScaling& yarn, std::string_view source) {
  const struct {
    RealLimits limits;
    std::string_view key;
    double value;
  } reals[] = {{kYarnFactorLimits, "rope_scaling.factor", yarn.factor},
               {kYarnBetaLimits, "rope_scaling.beta_fast", yarn.beta_fast},
               {kYarnBetaLimits, "rope_scaling.beta_slow", yarn.beta_slow}};
  for (const auto& real : reals) {
    if (Status status = check_real(real.limits, real.key, real.value, source); !status.ok()) return status;
  }
  if (yarn.beta_fast < yarn.beta_slow) {
    return refuse(StatusCode::kBadInput, source, "beta_fast", show(yarn.beta_fast),
                  "at least beta_slow = " + show(yarn.beta_slow) + " is accepted");
  }
  return check_integer(kYarnOriginalPositions, kYarnOriginalPositions.key, yarn.original_max_position_embeddings,
                       source);
}

}  // namespace

std::span<const IntegerField> integer_fields() noexcept {
  return kIntegerFields;
}

Status check_integer(const IntegerField& field, std::string_view key, std::int64_t value, std::string_view source) {
  if (value >= field.minimum && value <= field.maximum && value % field.multiple == 0) return {};
  std::string accepted = std::to_string(field.minimum) + " to " + std::to_string(field.maximum);
  if (field.multiple > 1) accepted += " in multiples of " + std::to_string(field.multiple);
  const StatusCode code = value < 1 ? StatusCode::kBadInput : StatusCode::kUnsupported;
  return refuse(code, source, key, std::to_string(value), accepted + " is accepted");
}

Status check_real(const RealLimits& limits, std::string_view key, double value, std::string_view source) {
  if (value >= limits.minimum && value <= limits.maximum) return {};  // false for NaN
  return refuse(StatusCode::kBadInput, source, key, show(value),
                show(limits.minimum) + " to " + show(limits.maximum) + " is accepted");
}

Status check_layer_ratios(const ModelConfig& config, std::string_view source) {
  if (Status status = check_integer(kLayerCount, kLayerCount.key, config.num_hidden_layers, source); !status.ok()) {
    return status;
  }
  const auto layer_count = static_cast<std::size_t>(config.num_hidden_layers);
  if (config.compress_ratios.size() < layer_count) {
    return refuse(StatusCode::kBadInput, source, "compress_ratios",
                  "an array of " + std::to_string(config.compress_ratios.size()) + " values",
                  "at least one per layer is accepted, num_hidden_layers = " + std::to_string(layer_count));
  }
  for (std::size_t layer = 0; layer < layer_count; ++layer) {
    const std::int32_t ratio = config.compress_ratios[layer];
    if (find_ratio_rule(ratio) != nullptr) continue;
    return refuse(StatusCode::kUnsupported, source, indexed("compress_ratios", layer), std::to_string(ratio),
                  "no such ratio for layer " + std::to_string(layer) + "; accepted: " + accepted_ratios());
  }
  return {};
}

Status ModelConfig::validate(std::string_view source) const {
  for (const IntegerField& field : kIntegerFields) {
    if (Status status = check_integer(field, field.key, this->*field.member, source); !status.ok()) return status;
  }
  if (num_attention_heads % o_groups != 0) {
    return refuse(StatusCode::kBadInput, source, "o_groups", std::to_string(o_groups),
                  "a divisor of num_attention_heads = " + std::to_string(num_attention_heads) + " is accepted");
  }
  const struct {
    RealLimits limits;
    std::string_view key;
    double value;
  } reals[] = {{kNormEpsLimits, "rms_norm_eps", rms_norm_eps},
               {kRopeThetaLimits, "rope_theta", rope_theta},
               {kRopeThetaLimits, "compress_rope_theta", compress_rope_theta}};
  for (const auto& real : reals) {
    if (Status status = check_real(real.limits, real.key, real.value, source); !status.ok()) return status;
  }
  if (rope_scaling) {
    if (Status status = check_yarn(*rope_scaling, source); !status.ok()) return status;
  }
  return check_layer_ratios(*this, source);
}

}  // namespace dsv4rt
