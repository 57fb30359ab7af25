#include <algorithm>
#include <cmath>
#include <new>
#include <system_error>

#include "base/input_file.h"
#include "base/message_text.h"
#include "base/system_failure.h"
#include "base/try.h"
#include "dsv4rt/model.h"
#include "model/config_limits.h"
#include "model/config_reader.h"
#include "model/json_document.h"
#include "model/ratio_rules.h"

namespace dsv4rt {
namespace {

// DeepSeek's inference configs leave out what its program sets by default.
constexpr double kInferenceNormEps = 1e-6;

void expect_value(ConfigReader& reader, const std::optional<Found<std::int64_t>>& found, std::int64_t expected) {
  if (!found || found->value == expected) return;
  reader.fail(StatusCode::kUnsupported, found->key, std::to_string(found->value),
              "only " + std::to_string(expected) + " is accepted");
}

// Facts that do not become fields because only one value is built.
void check_fixed_geometry(ConfigReader& reader) {
  if (const auto type = reader.text({"model_type"}); type && type->value != "deepseek_v4") {
    reader.fail(StatusCode::kUnsupported, "model_type", quote(type->value), "only \"deepseek_v4\" is accepted");
  }
  expect_value(reader, reader.required_integer({"head_dim"}), kHeadDim);
  expect_value(reader, reader.required_integer({"index_head_dim"}), kIndexHeadDim);
  expect_value(reader, reader.integer({"num_key_value_heads"}), 1);
  if (const auto bias = reader.boolean({"attention_bias"}); bias && bias->value) {
    reader.fail(StatusCode::kUnsupported, "attention_bias", "true", "only false is accepted");
  }

  // Newer Hugging Face files state the rotary width as a fraction of head_dim.
  const auto width = reader.integer({"qk_rope_head_dim", "rope_head_dim"});
  expect_value(reader, width, kRopeDim);
  const auto fraction =
      reader.number({"partial_rotary_factor", "rope_parameters.partial_rotary_factor",
                     "rope_parameters.main.partial_rotary_factor", "rope_parameters.compress.partial_rotary_factor"});
  if (fraction && fraction->value * kHeadDim != kRopeDim) {
    reader.fail(StatusCode::kUnsupported, fraction->key, std::to_string(fraction->value),
                "only 0.125 is accepted: 64 of 512 dimensions");
  }
  if (!width && !fraction) (void)reader.required_integer({"qk_rope_head_dim", "rope_head_dim"});
}

void read_integers(ConfigReader& reader, ModelConfig& config) {
  for (const IntegerField& field : integer_fields()) {
    if (field.member == &ModelConfig::max_position_embeddings) continue;  // may follow from the YaRN values
    const auto found = reader.required_integer({field.key, field.inference_key});
    if (!found) return;
    reader.fail(check_integer(field, found->key, found->value, reader.source()));
    config.*field.member = found->value;
  }
  if (reader.ok() && config.num_attention_heads % config.o_groups != 0) {
    reader.fail(StatusCode::kBadInput, "o_groups", std::to_string(config.o_groups),
                "a divisor of the " + std::to_string(config.num_attention_heads) + " attention heads is accepted");
  }
}

double read_real(ConfigReader& reader, const RealLimits& limits, ConfigReader::Keys keys) {
  const auto found = reader.required_number(keys);
  if (!found) return 0.0;
  reader.fail(check_real(limits, found->key, found->value, reader.source()));
  return found->value;
}

// Multipliers of cos and sin that the model does not have; present, they must be neutral.
void check_neutral_scales(ConfigReader& reader) {
  for (const std::string_view holder : {"rope_scaling", "rope_parameters", "rope_parameters.compress"}) {
    for (const std::string_view name : {"attention_factor", "mscale", "mscale_all_dim"}) {
      const std::string key = std::string(holder).append(".").append(name);
      const auto found = reader.number({key});
      if (found && found->value != 1.0) {
        reader.fail(StatusCode::kUnsupported, key, std::to_string(found->value), "only 1 is accepted");
      }
    }
    const std::string key = std::string(holder) + ".truncate";
    if (const auto found = reader.boolean({key}); found && !found->value) {
      reader.fail(StatusCode::kUnsupported, key, "false", "only true is accepted");
    }
  }
}

// Whether the compressed layers are interpolated: a "yarn" entry, or the inference-style length.
bool uses_yarn(ConfigReader& reader) {
  const auto type = reader.text({"rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.compress.rope_type",
                                 "rope_parameters.compress.type", "rope_parameters.rope_type", "rope_parameters.type"});
  if (type && type->value != "yarn" && type->value != "default") {
    reader.fail(StatusCode::kUnsupported, type->key, quote(type->value), "\"yarn\" or \"default\" is accepted");
  }
  if (reader.ok() && reader.has("rope_scaling") && !type) {
    reader.fail(Status(StatusCode::kBadInput, shown(reader.source()) + ": rope_scaling.type is missing; " +
                                                  "\"yarn\" or \"default\" is accepted"));
  }
  if (type) return type->value == "yarn";
  const auto length = reader.integer({"original_seq_len"});
  return length && length->value != 0;
}

void read_yarn(ConfigReader& reader, ModelConfig& config) {
  check_neutral_scales(reader);
  if (const auto main_type = reader.text({"rope_parameters.main.rope_type", "rope_parameters.main.type"});
      main_type && main_type->value != "default") {
    reader.fail(StatusCode::kUnsupported, main_type->key, quote(main_type->value), "only \"default\" is accepted");
  }
  if (!uses_yarn(reader)) return;

  YarnScaling yarn;
  yarn.factor =
      read_real(reader, kYarnFactorLimits,
                {"rope_scaling.factor", "rope_parameters.compress.factor", "rope_parameters.factor", "rope_factor"});
  yarn.beta_fast = read_real(
      reader, kYarnBetaLimits,
      {"rope_scaling.beta_fast", "rope_parameters.compress.beta_fast", "rope_parameters.beta_fast", "beta_fast"});
  yarn.beta_slow = read_real(
      reader, kYarnBetaLimits,
      {"rope_scaling.beta_slow", "rope_parameters.compress.beta_slow", "rope_parameters.beta_slow", "beta_slow"});
  const auto original = reader.required_integer(
      {"rope_scaling.original_max_position_embeddings", "rope_parameters.compress.original_max_position_embeddings",
       "rope_parameters.original_max_position_embeddings", "original_seq_len"});
  if (!original) return;
  reader.fail(check_integer(kYarnOriginalPositions, original->key, original->value, reader.source()));
  yarn.original_max_position_embeddings = original->value;
  config.rope_scaling = yarn;
}

// The per-layer list spelled as layer types and a ratio per type.
std::optional<std::vector<std::int32_t>> read_layer_types(ConfigReader& reader) {
  const auto types = reader.texts({"layer_types"});
  for (const std::string& name : reader.object_keys("compress_rates")) {
    if (find_layer_type_rule(name) != nullptr) continue;
    reader.fail(Status(StatusCode::kUnsupported, shown(reader.source()) + ": compress_rates." + printable(name) +
                                                     " is not a layer type; accepted: " + accepted_layer_types()));
  }
  for (const RatioRule& rule : ratio_rules()) {
    const std::string key = "compress_rates." + std::string(rule.layer_type);
    const auto rate = rule.rate_key.empty() ? reader.integer({key}) : reader.integer({key, rule.rate_key});
    expect_value(reader, rate, rule.ratio);
  }
  if (!types) return std::nullopt;
  std::vector<std::int32_t> ratios;
  for (const std::string& type : types->value) {
    const RatioRule* rule = find_layer_type_rule(type);
    if (rule == nullptr) {
      reader.fail(StatusCode::kUnsupported, indexed("layer_types", ratios.size()), quote(type),
                  "accepted: " + accepted_layer_types());
      return std::nullopt;
    }
    ratios.push_back(rule->ratio);
  }
  return ratios;
}

void read_layers(ConfigReader& reader, ModelConfig& config) {
  const auto typed = read_layer_types(reader);
  const auto listed = reader.integers({"compress_ratios"});
  if (!reader.ok()) return;
  if (!typed && !listed) {
    reader.fail(Status(StatusCode::kBadInput, shown(reader.source()) +
                                                  ": compress_ratios or layer_types is missing or null; an array "
                                                  "with an entry per layer is accepted"));
    return;
  }
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  if (typed && typed->size() < layers) {
    reader.fail(StatusCode::kBadInput, "layer_types", "an array of " + std::to_string(typed->size()) + " values",
                "at least one per layer is accepted, num_hidden_layers = " + std::to_string(layers));
    return;
  }
  config.compress_ratios = listed ? listed->value : *typed;
  // The two lists may differ behind the last layer: what follows belongs to draft blocks.
  for (std::size_t layer = 0; typed && listed && layer < std::min(layers, listed->value.size()); ++layer) {
    if ((*typed)[layer] == listed->value[layer]) continue;
    reader.fail(StatusCode::kBadInput, indexed("compress_ratios", layer), std::to_string(listed->value[layer]),
                "contradicts " + indexed("layer_types", layer) + ", whose ratio is " + std::to_string((*typed)[layer]) +
                    "; equal values are accepted");
  }
}

// Must follow read_yarn: an inference config without a length serves what YaRN was stretched to.
void read_max_positions(ConfigReader& reader, ModelConfig& config, bool inference_style) {
  const IntegerField& field = integer_fields().back();
  const auto found = reader.integer({field.key, field.inference_key});
  if (found) {
    reader.fail(check_integer(field, found->key, found->value, reader.source()));
    config.max_position_embeddings = found->value;
  } else if (inference_style && config.rope_scaling) {
    const double stretched =
        static_cast<double>(config.rope_scaling->original_max_position_embeddings) * config.rope_scaling->factor;
    config.max_position_embeddings =
        static_cast<std::int64_t>(std::min(std::floor(stretched), static_cast<double>(kMaxModelPositions)));
  } else {
    (void)reader.required_integer({field.key, field.inference_key});
  }
}

Result<ModelConfig> read_config(std::string_view text, std::string_view source) {
  const auto document = parse_json_object(text, source);
  if (!document) return document.status();
  ConfigReader reader(document->root(), source);
  const bool inference_style = reader.has("dim");

  ModelConfig config;
  check_fixed_geometry(reader);
  read_integers(reader, config);
  const bool default_eps = inference_style && !reader.has("norm_eps") && !reader.has("rms_norm_eps");
  config.rms_norm_eps =
      default_eps ? kInferenceNormEps : read_real(reader, kNormEpsLimits, {"rms_norm_eps", "norm_eps"});
  config.rope_theta = read_real(reader, kRopeThetaLimits,
                                {"rope_theta", "rope_parameters.main.rope_theta", "rope_parameters.rope_theta"});
  config.compress_rope_theta =
      read_real(reader, kRopeThetaLimits, {"compress_rope_theta", "rope_parameters.compress.rope_theta"});
  read_yarn(reader, config);
  read_max_positions(reader, config, inference_style);
  read_layers(reader, config);
  if (reader.ok()) reader.fail(config.validate(source));
  if (!reader.ok()) return reader.status();
  return config;
}

Status file_error(StatusCode code, const std::string& path, const std::string& why) {
  return {code, shown(path) + ": " + why};
}

Result<ModelConfig> read_file(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code error;
  const auto file_status = std::filesystem::status(path, error);
  if (file_status.type() == std::filesystem::file_type::not_found) {
    return file_error(StatusCode::kNotFound, name, "no such file; a model's config.json is accepted");
  }
  // Devices and pipes have no end that could be checked first.
  if (!std::filesystem::is_regular_file(file_status)) {
    return file_error(StatusCode::kBadInput, name, "not a regular file; a model's config.json is accepted");
  }
  DSV4RT_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxJsonTextBytes));
  return ModelConfig::from_json(text, name);
}

template <class Function>
Result<ModelConfig> without_exceptions(std::string_view source, Function function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return out_of_memory(source, "reading the config");
  } catch (const std::exception& failure) {
    return Status(StatusCode::kInternal, shown(source) + ": " + failure.what());
  }
}

}  // namespace

Result<ModelConfig> ModelConfig::from_file(const std::filesystem::path& path) {
  return without_exceptions("config file", [&] { return read_file(path); });
}

Result<ModelConfig> ModelConfig::from_json(std::string_view text, std::string_view source) {
  return without_exceptions(source, [&] { return read_config(text, source); });
}

}  // namespace dsv4rt
