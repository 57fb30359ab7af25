// How full the cache of a manager is, role by role.
#pragma once

#include "cache/cache_layout.h"
#include "cache/kv_cache_manager.h"
#include "dsv4rt/memory_plan.h"
#include "replay/replay_executor.h"

namespace dsv4rt::replay {

// At present, into `occupancy`, whose memory is used again.
void read_occupancy(const KVCacheManager& manager, const CacheLayout& layout, const CacheLimits& limits,
                    CacheOccupancy& occupancy);

}  // namespace dsv4rt::replay
