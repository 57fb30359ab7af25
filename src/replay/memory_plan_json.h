// A memory plan in JSON reports.
#pragma once

#include <nlohmann/json.hpp>

#include "cache/cache_layout.h"
#include "dsv4rt/memory_plan.h"

namespace dsv4rt::replay {

// What every role takes: one object each, in the plan's order; null for a plan without roles.
inline nlohmann::ordered_json planned_regions_json(const MemoryPlan& plan) {
  nlohmann::ordered_json roles;
  for (const PlannedRegion& region : plan.regions) {
    roles.push_back({{"role", cache_role_name(region.role)},
                     {"layers", region.layers},
                     {"bytes_per_token", region.bytes_per_token},
                     {"bytes_per_sequence", region.bytes_per_sequence},
                     {"blocks_per_layer", region.blocks_per_layer},
                     {"total_bytes", region.total_bytes}});
  }
  return roles;
}

}  // namespace dsv4rt::replay
