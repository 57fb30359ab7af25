// Computes the memory plan of a cache (struct MemoryPlan: include/dsv4rt/memory_plan.h).
#pragma once

#include <cstdint>

#include "cache/cache_layout.h"
#include "dsv4rt/memory_plan.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// Errors: limits that are not positive or beyond max_position_embeddings; a pool that cannot hold
// one sequence of max_context_tokens (kResourceExhausted naming role, needed and planned blocks).
Result<MemoryPlan> plan_memory(const ModelConfig& config, const LayerSchedule& schedule, const CacheLayout& layout,
                               const CacheLimits& limits);

// The largest pool_tokens whose plan (plus `other_bytes`: weights, workspace) fits `memory_bytes`;
// kResourceExhausted naming what does not fit when even the minimum does not.
Result<MemoryPlan> fit_memory(const ModelConfig& config, const LayerSchedule& schedule, const CacheLayout& layout,
                              CacheLimits limits, std::int64_t memory_bytes, std::int64_t other_bytes);

}  // namespace dsv4rt
