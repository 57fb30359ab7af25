#include "cache/memory_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>

#include "base/arithmetic.h"
#include "cache/block_math.h"
#include "cache/invalid.h"

namespace dsv4rt {
namespace {

constexpr std::int64_t kMaxBoundaryStates = 1 << 20;
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

// A sum of products that remembers whether it ever left 63 bits.
class ByteSum {
 public:
  void add(std::int64_t bytes) { overflow_ |= __builtin_add_overflow(total_, bytes, &total_); }
  void add(std::int64_t count, std::int64_t bytes_each) {
    std::int64_t product = 0;
    overflow_ |= __builtin_mul_overflow(count, bytes_each, &product);
    add(product);
  }
  [[nodiscard]] bool overflow() const { return overflow_; }
  [[nodiscard]] std::int64_t value() const { return total_; }

 private:
  std::int64_t total_ = 0;
  bool overflow_ = false;
};

Status check_limit(const char* field, std::int64_t value, std::int64_t least, std::int64_t most, const char* why) {
  if (value >= least && value <= most) return {};
  return invalid(std::string("cache limits: ") + field + " = " + std::to_string(value) +
                 "; accepted: " + std::to_string(least) + " .. " + std::to_string(most) + why);
}

Status check_limits(const ModelConfig& config, const CacheLimits& limits) {
  // Positions are 32 bits on the device, and length + step tokens must not wrap there.
  const std::int64_t longest = std::min(config.max_position_embeddings, kMaxInt32 / 2);
  for (const Status& status :
       {check_limit("max_sequences", limits.max_sequences, 1, kMaxInt32 / 2, ""),
        check_limit("max_context_tokens", limits.max_context_tokens, 1, longest, " (max_position_embeddings)"),
        check_limit("max_step_tokens", limits.max_step_tokens, 1, kMaxInt32 / 2, ""),
        check_limit("pool_tokens", limits.pool_tokens, 0, std::numeric_limits<std::int64_t>::max(),
                    " (0: max_sequences * max_context_tokens)"),
        check_limit("boundary_states", limits.boundary_states, 0, kMaxBoundaryStates, " (0: no prefix cache)")}) {
    if (!status.ok()) return status;
  }
  return {};
}

// Blocks of `pool` for pool_tokens, the null block included; nothing when ids would leave 32 bits.
std::optional<std::int64_t> planned_blocks(const PoolSpec& pool, const CacheLimits& limits) {
  const std::int64_t rows = limits.pool_tokens / pool.ratio;
  const std::int64_t full_blocks = rows / pool.shape.rows + (rows % pool.shape.rows != 0 ? 1 : 0);
  if (full_blocks >= kMaxInt32 - limits.max_sequences - 1) return std::nullopt;
  return 1 + full_blocks + limits.max_sequences;
}

Status check_floor(const PoolSpec& pool, std::int64_t blocks, const CacheLimits& limits) {
  const std::int64_t needed = blocks_for_tokens(pool, limits.max_context_tokens);
  if (blocks - 1 >= needed) return {};
  return {StatusCode::kResourceExhausted,
          std::string(cache_role_name(pool.role)) + " of layer " + std::to_string(pool.layer.value) +
              ": one sequence of " + std::to_string(limits.max_context_tokens) + " tokens needs " +
              std::to_string(needed) + " blocks of " + std::to_string(pool.shape.block_bytes) + " bytes, planned are " +
              std::to_string(blocks - 1) + " (pool_tokens = " + std::to_string(limits.pool_tokens) + ")"};
}

// The regions of the plan, one per role, filled while walking the layout.
class RegionTable {
 public:
  bool add_pool(const PoolSpec& pool, std::int64_t blocks) {
    PlannedRegion& region = take(pool.role);
    region.bytes_per_token += static_cast<double>(pool.shape.row_bytes()) / pool.ratio;
    region.blocks_per_layer = blocks;
    return add_bytes(region, blocks, pool.shape.block_bytes);
  }

  bool add_slot(const SlotSpec& slot, std::int64_t max_sequences) {
    PlannedRegion& region = take(slot.role);
    region.bytes_per_sequence += slot.slot_bytes;
    return add_bytes(region, max_sequences, slot.slot_bytes);
  }

  [[nodiscard]] std::vector<PlannedRegion> in_role_order() const {
    std::vector<PlannedRegion> present;
    for (const PlannedRegion& region : regions_) {
      if (region.layers > 0) present.push_back(region);
    }
    return present;
  }

 private:
  PlannedRegion& take(CacheRole role) {
    PlannedRegion& region = regions_[static_cast<std::size_t>(role)];
    region.role = role;
    ++region.layers;
    return region;
  }

  static bool add_bytes(PlannedRegion& region, std::int64_t count, std::int64_t bytes_each) {
    ByteSum sum;
    sum.add(region.total_bytes);
    sum.add(count, bytes_each);
    region.total_bytes = sum.value();
    return !sum.overflow();
  }

  std::array<PlannedRegion, kCacheRoleCount> regions_{};
};

Status does_not_fit_64_bits(const CacheLimits& limits) {
  return invalid("cache limits: max_sequences = " + std::to_string(limits.max_sequences) +
                 " with pool_tokens = " + std::to_string(limits.pool_tokens) +
                 " needs more bytes or blocks than 64-bit sizes and 32-bit "
                 "block ids can name; accepted: smaller limits");
}

// Everything but the check that a sequence of max_context_tokens fits. `limits` are checked and
// pool_tokens is resolved.
Result<MemoryPlan> build_plan(const LayerSchedule& schedule, const CacheLayout& layout, const CacheLimits& limits) {
  MemoryPlan plan;
  plan.limits = limits;
  RegionTable regions;
  ByteSum tables;
  for (const PoolSpec& pool : layout.pools()) {
    const std::optional<std::int64_t> blocks = planned_blocks(pool, limits);
    if (!blocks || !regions.add_pool(pool, *blocks)) return does_not_fit_64_bits(limits);
    plan.pool_blocks.push_back(*blocks);
    tables.add(limits.max_sequences * block_table_columns(pool, limits.max_context_tokens),
               static_cast<std::int64_t>(sizeof(std::int32_t)));
  }
  for (const SlotSpec& slot : layout.slots()) {
    if (!regions.add_slot(slot, limits.max_sequences)) return does_not_fit_64_bits(limits);
  }
  Result<StepCapacity> capacity = step_capacity(schedule, layout, limits);
  if (!capacity) return capacity.status();

  plan.regions = regions.in_role_order();
  plan.block_table_bytes = tables.value();
  plan.step_metadata_bytes = static_cast<std::int64_t>(step_offsets(*capacity).total_bytes);
  plan.bytes_per_token = layout.bytes_per_token();
  plan.bytes_per_sequence = layout.bytes_per_sequence();
  plan.sharing_unit_tokens = layout.sharing_unit_tokens();
  ByteSum total;
  for (const PlannedRegion& region : plan.regions) total.add(region.total_bytes);
  plan.prefix_unit_tokens = layout.prefix_unit_tokens();
  plan.bytes_per_boundary_state = layout.boundary_state_bytes();
  if (limits.boundary_states > 0) {
    ByteSum states;
    states.add(limits.boundary_states, plan.bytes_per_boundary_state);
    if (states.overflow()) return does_not_fit_64_bits(limits);
    plan.boundary_state_bytes = states.value();
    plan.table_row_bytes = tables.value() / limits.max_sequences;
    total.add(plan.boundary_state_bytes);
    total.add(plan.table_row_bytes);
  }
  total.add(plan.block_table_bytes);
  total.add(plan.step_metadata_bytes);
  if (tables.overflow() || total.overflow()) return does_not_fit_64_bits(limits);
  plan.total_bytes = total.value();
  return plan;
}

std::string breakdown(const MemoryPlan& plan, std::int64_t other_bytes) {
  std::string text;
  for (const PlannedRegion& region : plan.regions) {
    text += std::string(cache_role_name(region.role)) + " " + std::to_string(region.total_bytes) + ", ";
  }
  return text + "block tables " + std::to_string(plan.block_table_bytes) + ", step metadata " +
         std::to_string(plan.step_metadata_bytes) + ", other " + std::to_string(other_bytes);
}

}  // namespace

Result<StepCapacity> step_capacity(const LayerSchedule& schedule, const CacheLayout& layout,
                                   const CacheLimits& limits) {
  const std::int64_t tokens = limits.max_step_tokens;
  const std::int64_t sequences = std::min<std::int64_t>(limits.max_sequences, tokens);
  std::int64_t deltas = 0;
  std::int64_t copies = 0;
  for (const PoolSpec& pool : layout.pools()) {
    const std::int64_t block_tokens = std::int64_t{pool.ratio} * pool.shape.rows;
    deltas += (tokens - sequences) / block_tokens + 2 * sequences;
    copies += sequences;
  }
  if (deltas > kMaxInt32) {
    return invalid("cache limits: max_step_tokens = " + std::to_string(tokens) + " with max_sequences = " +
                   std::to_string(limits.max_sequences) + " may change " + std::to_string(deltas) +
                   " block-table entries in one step; accepted: at most " + std::to_string(kMaxInt32));
  }
  return StepCapacity{.tokens = limits.max_step_tokens,
                      .sequences = limits.max_sequences,
                      .ratio_classes = static_cast<std::int32_t>(schedule.ratios().size()),
                      .table_deltas = static_cast<std::int32_t>(deltas),
                      .block_copies = static_cast<std::int32_t>(copies)};
}

Result<MemoryPlan> plan_memory(const ModelConfig& config, const LayerSchedule& schedule, const CacheLayout& layout,
                               const CacheLimits& limits) {
  if (Status status = check_limits(config, limits); !status.ok()) return status;
  CacheLimits resolved = limits;
  if (resolved.pool_tokens == 0) resolved.pool_tokens = resolved.max_sequences * resolved.max_context_tokens;
  Result<MemoryPlan> plan = build_plan(schedule, layout, resolved);
  if (!plan) return plan;
  for (std::size_t pool = 0; pool < layout.pools().size(); ++pool) {
    if (Status status = check_floor(layout.pools()[pool], plan->pool_blocks[pool], resolved); !status.ok()) {
      return status;
    }
  }
  return plan;
}

Result<MemoryPlan> fit_memory(const ModelConfig& config, const LayerSchedule& schedule, const CacheLayout& layout,
                              CacheLimits limits, std::int64_t memory_bytes, std::int64_t other_bytes) {
  if (memory_bytes <= 0 || other_bytes < 0) {
    return invalid("memory fit: memory_bytes = " + std::to_string(memory_bytes) +
                   ", other_bytes = " + std::to_string(other_bytes) + "; accepted: memory_bytes > 0, other_bytes >= 0");
  }
  limits.pool_tokens = limits.max_context_tokens;  // the floor: one longest sequence
  Result<MemoryPlan> best = plan_memory(config, schedule, layout, limits);
  if (!best) return best;
  const std::int64_t budget_bytes = memory_bytes - other_bytes;
  if (best->total_bytes > budget_bytes) {
    return Status(StatusCode::kResourceExhausted,
                  "cache for " + std::to_string(limits.max_sequences) + " sequences and one context of " +
                      std::to_string(limits.max_context_tokens) + " tokens does not fit " +
                      std::to_string(memory_bytes) + " bytes: " + breakdown(*best, other_bytes));
  }
  // Invariant: `fits` tokens fit, `too_many` do not (or are more than the sequences can hold; prefixes hold any
  // number).
  std::int64_t fits = limits.pool_tokens;
  std::int64_t too_many = limits.max_sequences * limits.max_context_tokens + 1;
  if (limits.boundary_states > 0 && best->bytes_per_token > 0) {
    too_many =
        std::max(too_many, static_cast<std::int64_t>(static_cast<double>(budget_bytes) / best->bytes_per_token) + 1);
  }
  while (too_many - fits > 1) {
    limits.pool_tokens = fits + (too_many - fits) / 2;
    Result<MemoryPlan> plan = build_plan(schedule, layout, limits);
    if (plan.ok() && plan->total_bytes <= budget_bytes) {
      fits = limits.pool_tokens;
      best = std::move(plan);
    } else {
      too_many = limits.pool_tokens;
    }
  }
  return best;
}

}  // namespace dsv4rt
