// Computes the memory plan of a cache (struct MemoryPlan: include/dsv4rt/memory_plan.h).
#pragma once

#include <cstdint>

#include "cache/cache_layout.h"
#include "dsv4rt/memory_plan.h"
#include "dsv4rt/status.h"
#include "step/step_metadata.h"

namespace dsv4rt {

// Errors: limits that are not positive or beyond max_position_embeddings; a pool that cannot hold
// one sequence of max_context_tokens (kResourceExhausted naming role, needed and planned blocks).
//
// A pool has 1 + blocks(pool_tokens) + max_sequences blocks: the null block, full blocks for the
// tokens, and one partly filled last block per sequence. Forks need no more: a shared block counts
// once, and copying it on write gives the sequence no more blocks than it would own alone.
Result<MemoryPlan> plan_memory(const ModelConfig& config, const LayerSchedule& schedule, const CacheLayout& layout,
                               const CacheLimits& limits);

// The largest pool_tokens whose plan (plus `other_bytes`: weights, workspace) fits `memory_bytes`;
// limits.pool_tokens is ignored. kResourceExhausted naming what does not fit when even one sequence
// of max_context_tokens does not.
Result<MemoryPlan> fit_memory(const ModelConfig& config, const LayerSchedule& schedule, const CacheLayout& layout,
                              CacheLimits limits, std::int64_t memory_bytes, std::int64_t other_bytes);

// What one step can need at most, which fixes the size and offsets of the metadata buffer.
//
// Of T tokens spread over s = min(max_sequences, T) sequences, a sequence with n of them starts at
// most ceil(n / block_tokens) new blocks in a pool and copies at most one shared block; summed,
// (T - s) / block_tokens + s new blocks and s copies, and each gives one table delta.
// Errors: a bound that does not fit the buffer's 32-bit counts (kInvalidArgument naming it).
Result<StepCapacity> step_capacity(const LayerSchedule& schedule, const CacheLayout& layout, const CacheLimits& limits);

}  // namespace dsv4rt
