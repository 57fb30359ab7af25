#include "tools/lib/prefix_costs.h"

#include <algorithm>

namespace dsv4rt {
namespace {

constexpr std::int64_t kIntervals[] = {0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

// What the plan has for blocks of rows and for states together.
std::int64_t planned_bytes(const MemoryPlan& plan) {
  std::int64_t bytes = plan.boundary_state_bytes;
  for (const PlannedRegion& region : plan.regions) {
    if (region.bytes_per_token > 0) bytes += region.total_bytes;
  }
  return bytes;
}

}  // namespace

std::vector<PrefixIntervalCost> prefix_interval_costs(const MemoryPlan& plan, std::int64_t cache_bytes) {
  const std::int64_t budget = cache_bytes - (plan.total_bytes - planned_bytes(plan));
  const auto state_bytes = static_cast<double>(plan.bytes_per_boundary_state);
  std::vector<PrefixIntervalCost> costs;
  for (const std::int64_t interval : kIntervals) {
    if (interval % plan.prefix_unit_tokens != 0) continue;
    PrefixIntervalCost cost;
    cost.interval_tokens = interval;
    cost.bytes_per_token = plan.bytes_per_token;
    if (interval > 0) cost.bytes_per_token += state_bytes / static_cast<double>(interval);
    const std::int64_t bytes = std::max<std::int64_t>(budget - (interval == 0 ? plan.boundary_state_bytes : 0), 0);
    cost.cached_tokens = static_cast<std::int64_t>(static_cast<double>(bytes) / cost.bytes_per_token);
    cost.states = interval == 0 ? plan.limits.boundary_states : cost.cached_tokens / interval;
    costs.push_back(cost);
  }
  return costs;
}

}  // namespace dsv4rt
