#include "replay/cache_occupancy.h"

#include <algorithm>
#include <cstddef>
#include <span>

namespace dsv4rt::replay {

void read_occupancy(const KVCacheManager& manager, const CacheLayout& layout, const CacheLimits& limits,
                    CacheOccupancy& occupancy) {
  occupancy.roles.clear();
  const std::span<const PoolSpec> pools = layout.pools();
  for (std::size_t pool = 0; pool < pools.size(); ++pool) {
    auto role = std::find_if(occupancy.roles.begin(), occupancy.roles.end(),
                             [&](const RoleOccupancy& known) { return known.role == pools[pool].role; });
    if (role == occupancy.roles.end()) {
      role = occupancy.roles.insert(role, RoleOccupancy{.role = pools[pool].role});
    }
    const PoolUsage usage = manager.usage(static_cast<int>(pool));
    role->total_blocks += usage.total;
    role->live_blocks += usage.live;
    role->cached_blocks += usage.cached + usage.pinned;
    role->reserved_blocks += usage.reserved;
  }
  std::sort(occupancy.roles.begin(), occupancy.roles.end(),
            [](const RoleOccupancy& a, const RoleOccupancy& b) { return a.role < b.role; });
  occupancy.live_sequences = manager.live_sequences();
  occupancy.max_sequences = limits.max_sequences;
  occupancy.kept_states = manager.prefix_stats().kept_states;
  occupancy.max_states = limits.boundary_states;
}

}  // namespace dsv4rt::replay
