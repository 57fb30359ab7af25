#include "cache/cache_layout.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/arithmetic.h"
#include "base/check.h"
#include "cache/invalid.h"
#include "step/step_metadata.h"

namespace dsv4rt {
namespace {

constexpr std::int64_t kBaseSharingUnitTokens = 256;
constexpr std::int64_t kBasePrefixUnitTokens = 128;
constexpr std::int64_t kBoundaryAlignment = 256;
constexpr std::int32_t kMaxDraftBudgetTokens = 64;
constexpr std::int32_t kMaxRowsPerBlock = 4096;
// Rings are allocated whole per sequence: a wider one is a malformed config, not a model.
constexpr std::int64_t kMaxRingRows = std::int64_t{1} << 20;

constexpr std::array<std::string_view, kCacheRoleCount> kRoleNames = {"SWA_KV",    "CSA_KV",      "INDEX_K",  "HCA_KV",
                                                                      "CSA_STATE", "INDEX_STATE", "HCA_STATE"};

struct RowsPerBlock {
  std::string_view field;
  std::int32_t rows;
};

RowsPerBlock rows_per_block(const CacheFormats& formats, const LayerSpec& layer) {
  if (layer.kind == AttentionKind::kHeavilyCompressed) return {"hca_rows_per_block", formats.hca_rows_per_block};
  return {"csa_rows_per_block", formats.csa_rows_per_block};
}

Status check_range(std::string_view field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return {};
  return invalid("cache formats: " + std::string(field) + " = " + std::to_string(value) +
                 "; accepted: " + std::to_string(least) + " .. " + std::to_string(most));
}

// A block covers several sharing units or a unit covers several blocks; anything else would end
// shared prefixes in the middle of a block at every unit.
Status check_block_tokens(const CacheFormats& formats, const LayerSpec& layer, std::int64_t unit_tokens) {
  const auto [field, rows] = rows_per_block(formats, layer);
  const std::int64_t block_tokens = std::int64_t{rows} * layer.ratio;
  if (block_tokens % unit_tokens == 0 || unit_tokens % block_tokens == 0) return {};
  return invalid("cache formats: " + std::string(field) + " = " + std::to_string(rows) + " makes blocks of " +
                 std::to_string(block_tokens) + " tokens; accepted: divisors or multiples of the sharing unit of " +
                 std::to_string(unit_tokens) + " tokens");
}

PoolSpec make_pool(const LayerSpec& layer, CacheRole role, int ratio_class, BlockShape shape) {
  return {.layer = layer.id, .role = role, .ratio = layer.ratio, .ratio_class = ratio_class, .shape = shape};
}

SlotSpec make_window_slot(LayerId layer, std::int64_t window, const CacheFormats& formats) {
  SlotSpec slot;
  slot.layer = layer;
  slot.role = CacheRole::kSwaKv;
  slot.needed_rows = static_cast<std::int32_t>(window - 1);
  slot.ring_rows = static_cast<std::int32_t>(window + formats.draft_budget_tokens);
  slot.shape = block_shape(formats.rows, slot.ring_rows);
  slot.row_bytes = slot.shape.row_bytes();
  slot.slot_bytes = slot.shape.block_bytes;
  return slot;
}

// Rows of a compressor ring are FP32 [2][state_width]: kv, then score + ape. An overlapping
// compressor keeps a "previous" and a "current" column for every output value.
SlotSpec make_state_slot(const LayerSpec& layer, CacheRole role, int dim, const CacheFormats& formats) {
  const std::int32_t pooled_rows = layer.overlap ? 2 * layer.ratio : layer.ratio;
  SlotSpec slot;
  slot.layer = layer.id;
  slot.role = role;
  slot.needed_rows = pooled_rows - 1;
  slot.ring_rows = pooled_rows + formats.draft_budget_tokens;
  slot.ratio = layer.ratio;
  slot.overlap = layer.overlap;
  slot.state_width = layer.overlap ? 2 * dim : dim;
  slot.row_bytes = std::int64_t{2} * slot.state_width * static_cast<std::int64_t>(sizeof(float));
  slot.slot_bytes = slot.ring_rows * slot.row_bytes;
  slot.shape = {.rows = slot.ring_rows,
                .data_bytes = static_cast<std::int32_t>(slot.row_bytes),
                .scale_bytes = 0,
                .block_bytes = slot.slot_bytes};
  return slot;
}

template <class Spec>
int find_spec(std::span<const Spec> specs, LayerId layer, CacheRole role) noexcept {
  const auto found = std::find_if(specs.begin(), specs.end(),
                                  [&](const Spec& spec) { return spec.layer == layer && spec.role == role; });
  return found == specs.end() ? -1 : static_cast<int>(found - specs.begin());
}

}  // namespace

CompressorRoles compressor_roles(const LayerSpec& layer) noexcept {
  if (layer.kind == AttentionKind::kHeavilyCompressed) return {CacheRole::kHcaKv, CacheRole::kHcaState};
  return {CacheRole::kCsaKv, CacheRole::kCsaState};
}

std::string_view cache_role_name(CacheRole role) noexcept {
  const auto index = static_cast<std::size_t>(role);
  return index < kRoleNames.size() ? kRoleNames[index] : "unknown";
}

Result<CacheLayout> CacheLayout::create(const ModelConfig& config, const LayerSchedule& schedule,
                                        const CacheFormats& formats) {
  for (const Status& status :
       {check_range("csa_rows_per_block", formats.csa_rows_per_block, 1, kMaxRowsPerBlock),
        check_range("hca_rows_per_block", formats.hca_rows_per_block, 1, kMaxRowsPerBlock),
        check_range("draft_budget_tokens", formats.draft_budget_tokens, 0, kMaxDraftBudgetTokens),
        check_range("sliding_window", config.sliding_window, 1, kMaxRingRows)}) {
    if (!status.ok()) return status;
  }
  if (schedule.ratios().size() > kMaxRatioClasses) {
    return Status(StatusCode::kUnsupported, "layer schedule: " + std::to_string(schedule.ratios().size()) +
                                                " distinct compress_ratios; accepted: at most " +
                                                std::to_string(kMaxRatioClasses));
  }

  CacheLayout layout;
  layout.formats_ = formats;
  layout.sharing_unit_tokens_ = round_up(kBaseSharingUnitTokens, schedule.alignment_tokens());
  layout.prefix_unit_tokens_ = round_up(kBasePrefixUnitTokens, schedule.alignment_tokens());
  for (const LayerSpec& layer : schedule.layers()) {
    layout.slots_.push_back(make_window_slot(layer.id, config.sliding_window, formats));
    if (layer.ratio == 0) continue;
    if (Status status = check_block_tokens(formats, layer, layout.sharing_unit_tokens_); !status.ok()) return status;
    const int ratio_class = schedule.ratio_class(layer.ratio);
    const std::int32_t rows = rows_per_block(formats, layer).rows;
    const CompressorRoles roles = compressor_roles(layer);
    layout.pools_.push_back(make_pool(layer, roles.rows, ratio_class, block_shape(formats.rows, rows)));
    layout.slots_.push_back(make_state_slot(layer, roles.state, kHeadDim, formats));
    if (!layer.indexer) continue;
    layout.pools_.push_back(make_pool(layer, CacheRole::kIndexK, ratio_class, block_shape(formats.index_keys, rows)));
    layout.slots_.push_back(make_state_slot(layer, CacheRole::kIndexState, kIndexHeadDim, formats));
  }
  // A step writes up to draft budget + 1 tokens that may all be rejected: the rows that the kept
  // tokens need must survive them.
  for (const SlotSpec& slot : layout.slots_) {
    DSV4RT_CHECK(slot.ring_rows >= slot.needed_rows + 1 + formats.draft_budget_tokens);
  }
  layout.add_boundary_rows();
  return layout;
}

void CacheLayout::add_boundary_rows() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const SlotSpec& slot = slots_[i];
    // A window of one position needs no row; keeping one costs nothing that would be worth an exception.
    const std::int32_t rows = slot.ratio == 0 ? std::max(slot.needed_rows, 1) : slot.overlap ? slot.ratio : 0;
    if (rows == 0) continue;
    BlockShape shape = slot.shape;
    if (slot.ratio == 0) {
      shape = block_shape(formats_.rows, rows);
    } else {
      shape.rows = rows;
      shape.block_bytes = rows * slot.row_bytes;
    }
    boundary_.push_back({.slot = static_cast<int>(i), .shape = shape, .offset = boundary_state_bytes_});
    boundary_state_bytes_ = round_up(boundary_state_bytes_ + shape.block_bytes, kBoundaryAlignment);
  }
}

int CacheLayout::pool_index(LayerId layer, CacheRole role) const noexcept {
  return find_spec(pools(), layer, role);
}
int CacheLayout::slot_index(LayerId layer, CacheRole role) const noexcept {
  return find_spec(slots(), layer, role);
}

double CacheLayout::bytes_per_token() const noexcept {
  double bytes = 0;
  for (const PoolSpec& pool : pools_) bytes += static_cast<double>(pool.shape.row_bytes()) / pool.ratio;
  return bytes;
}

std::int64_t CacheLayout::bytes_per_sequence() const noexcept {
  std::int64_t bytes = 0;
  for (const SlotSpec& slot : slots_) bytes += slot.slot_bytes;
  return bytes;
}

std::int64_t first_needed_position(const SlotSpec& spec, std::int64_t length) noexcept {
  if (spec.ratio == 0) return std::max<std::int64_t>(0, length - spec.needed_rows);
  const std::int64_t block_start = length / spec.ratio * spec.ratio;
  return spec.overlap ? std::max<std::int64_t>(0, block_start - spec.ratio) : block_start;
}

std::int64_t earliest_reachable_length(const SlotSpec& spec, std::int64_t high_water) noexcept {
  const std::int64_t oldest = high_water - spec.ring_rows;  // position of the oldest row in the ring
  if (oldest <= 0) return 0;
  if (spec.ratio == 0) return oldest + spec.needed_rows;
  const std::int64_t block_start = round_up<std::int64_t>(oldest, spec.ratio);
  return spec.overlap ? block_start + spec.ratio : block_start;
}

}  // namespace dsv4rt
