// The memory plan: what a cache of given limits takes, known before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/cache_layout.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// Limits given at start; nothing grows beyond them.
struct CacheLimits {
  std::int32_t max_sequences = 1;       // live sequences: slots and block-table rows
  std::int64_t max_context_tokens = 0;  // longest sequence
  std::int32_t max_step_tokens = 0;     // rows of x in one step, padding included
  // Tokens that all sequences together may hold; 0: max_sequences * max_context_tokens.
  std::int64_t pool_tokens = 0;
};

struct PlannedRegion {
  CacheRole role = CacheRole::kSwaKv;
  std::int32_t layers = 0;
  double bytes_per_token = 0;              // unpadded, all layers of the role; 0 for slot roles
  std::int64_t bytes_per_sequence = 0;     // all layers of the role; 0 for paged roles
  std::int64_t blocks_per_layer = 0;       // paged roles, the null block included
  std::int64_t total_bytes = 0;            // as allocated
};

struct MemoryPlan {
  CacheLimits limits;
  std::vector<PlannedRegion> regions;      // one per role the model has
  std::vector<std::int64_t> pool_blocks;   // per CacheLayout::pools entry, the null block included
  std::int64_t block_table_bytes = 0;      // device tables of every pool
  std::int64_t step_metadata_bytes = 0;
  double bytes_per_token = 0;
  std::int64_t bytes_per_sequence = 0;
  std::int64_t sharing_unit_tokens = 0;
  std::int64_t total_bytes = 0;            // everything above
};

// Errors: limits that are not positive or beyond max_position_embeddings; a pool that cannot hold
// one sequence of max_context_tokens (kResourceExhausted naming role, needed and planned blocks).
Result<MemoryPlan> plan_memory(const ModelConfig& config, const LayerSchedule& schedule, const CacheLayout& layout,
                               const CacheLimits& limits);

// The largest pool_tokens whose plan (plus `other_bytes`: weights, workspace) fits `memory_bytes`;
// kResourceExhausted naming what does not fit when even the minimum does not.
Result<MemoryPlan> fit_memory(const ModelConfig& config, const LayerSchedule& schedule, const CacheLayout& layout,
                              CacheLimits limits, std::int64_t memory_bytes, std::int64_t other_bytes);

}  // namespace dsv4rt
