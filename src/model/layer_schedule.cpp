#include <algorithm>
#include <array>
#include <numeric>

#include "dsv4rt/model.h"
#include "model/config_limits.h"
#include "model/ratio_rules.h"

namespace dsv4rt {
namespace {

constexpr std::array<RatioRule, 3> kRatioRules{{
    {.ratio = 0,
     .kind = AttentionKind::kSlidingWindow,
     .name = "swa",
     .layer_type = "sliding_attention",
     .rate_key = "",
     .overlap = false,
     .indexer = false,
     .rope = RopeChoice::kPlain},
    {.ratio = 4,
     .kind = AttentionKind::kCompressedSparse,
     .name = "csa",
     .layer_type = "compressed_sparse_attention",
     .rate_key = "compress_rate_csa",
     .overlap = true,
     .indexer = true,
     .rope = RopeChoice::kCompressed},
    {.ratio = 128,
     .kind = AttentionKind::kHeavilyCompressed,
     .name = "hca",
     .layer_type = "heavily_compressed_attention",
     .rate_key = "compress_rate_hca",
     .overlap = false,
     .indexer = false,
     .rope = RopeChoice::kCompressed},
}};

template <class Predicate>
const RatioRule* find_rule(Predicate matches) noexcept {
  const auto rule = std::find_if(kRatioRules.begin(), kRatioRules.end(), matches);
  return rule == kRatioRules.end() ? nullptr : &*rule;
}

}  // namespace

std::span<const RatioRule> ratio_rules() noexcept {
  return kRatioRules;
}

const RatioRule* find_ratio_rule(std::int32_t ratio) noexcept {
  return find_rule([&](const RatioRule& rule) { return rule.ratio == ratio; });
}

const RatioRule* find_layer_type_rule(std::string_view layer_type) noexcept {
  return find_rule([&](const RatioRule& rule) { return rule.layer_type == layer_type; });
}

std::string accepted_ratios() {
  std::string list;
  for (const RatioRule& rule : kRatioRules) {
    list.append(list.empty() ? "" : ", ").append(std::to_string(rule.ratio)).append(" (").append(rule.name) += ')';
  }
  return list;
}

std::string accepted_layer_types() {
  std::string list;
  for (const RatioRule& rule : kRatioRules) list.append(list.empty() ? "" : ", ").append(rule.layer_type);
  return list;
}

std::string_view attention_kind_name(AttentionKind kind) noexcept {
  const RatioRule* rule = find_rule([&](const RatioRule& candidate) { return candidate.kind == kind; });
  return rule == nullptr ? "unknown" : rule->name;
}

Result<LayerSchedule> LayerSchedule::create(const ModelConfig& config) {
  if (Status status = check_layer_ratios(config, "model config"); !status.ok()) return status;
  LayerSchedule schedule;
  const auto layer_count = static_cast<std::size_t>(config.num_hidden_layers);
  schedule.layers_.reserve(layer_count);
  for (std::size_t layer = 0; layer < layer_count; ++layer) {
    const RatioRule& rule = *find_ratio_rule(config.compress_ratios[layer]);
    schedule.layers_.push_back({.id = LayerId(static_cast<std::int32_t>(layer)),
                                .kind = rule.kind,
                                .ratio = rule.ratio,
                                .overlap = rule.overlap,
                                .indexer = rule.indexer,
                                .rope = rule.rope});
    if (rule.ratio > 0) schedule.ratios_.push_back(rule.ratio);
  }
  auto& ratios = schedule.ratios_;
  std::sort(ratios.begin(), ratios.end());
  ratios.erase(std::unique(ratios.begin(), ratios.end()), ratios.end());
  return schedule;
}

int LayerSchedule::ratio_class(std::int32_t ratio) const noexcept {
  const auto found = std::find(ratios_.begin(), ratios_.end(), ratio);
  return found == ratios_.end() ? -1 : static_cast<int>(found - ratios_.begin());
}

std::int64_t LayerSchedule::alignment_tokens() const noexcept {
  std::int64_t multiple = 1;
  for (const std::int32_t ratio : ratios_) multiple = std::lcm(multiple, std::int64_t{ratio});
  return multiple;
}

}  // namespace dsv4rt
