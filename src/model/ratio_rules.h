// What a compression ratio means: the only table from ratios to layer kinds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dsv4rt/model.h"

namespace dsv4rt {

struct RatioRule {
  std::int32_t ratio;
  AttentionKind kind;
  std::string_view name;        // attention_kind_name
  std::string_view layer_type;  // entry of Hugging Face `layer_types`, key of `compress_rates`
  std::string_view rate_key;    // Hugging Face's older scalar key for the ratio; empty: none
  bool overlap;
  bool indexer;
  RopeChoice rope;
};

std::span<const RatioRule> ratio_rules() noexcept;
// Null when the ratio or name is not known.
const RatioRule* find_ratio_rule(std::int32_t ratio) noexcept;
const RatioRule* find_layer_type_rule(std::string_view layer_type) noexcept;

// "0 (swa), 4 (csa), ..." and "sliding_attention, ...", for messages.
std::string accepted_ratios();
std::string accepted_layer_types();

}  // namespace dsv4rt
