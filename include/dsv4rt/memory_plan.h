// Cache limits, formats and the memory plan: what a cache takes, known before anything is allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "dsv4rt/types.h"

namespace dsv4rt {

// Row formats and block sizes of a cache.
struct CacheFormats {
  RowFormat rows = RowFormat::kFp8DsMla;  // window and compressed rows
  IndexKeyFormat index_keys = IndexKeyFormat::kMxfp4;
  std::int32_t csa_rows_per_block = 64;  // compressed rows and index keys of CSA layers
  std::int32_t hca_rows_per_block = 64;  // may span several sharing units; a shared partial block is copied on write
  // Tokens beyond the last committed one that a step may write and later reject (verify width - 1).
  std::int32_t draft_budget_tokens = 0;
};

// Limits given at start; nothing grows beyond them.
struct CacheLimits {
  std::int32_t max_sequences = 1;       // live sequences: slots and block-table rows
  std::int64_t max_context_tokens = 0;  // longest sequence
  std::int32_t max_step_tokens = 0;     // rows of x in one step, padding included
  // Tokens that all sequences together may hold; 0: max_sequences * max_context_tokens.
  std::int64_t pool_tokens = 0;
  // Boundary states that the prefix cache may keep; 0: no prefix cache.
  std::int32_t boundary_states = 0;
};

struct PlannedRegion {
  CacheRole role = CacheRole::kSwaKv;
  std::int32_t layers = 0;
  double bytes_per_token = 0;           // unpadded, all layers of the role; 0 for slot roles
  std::int64_t bytes_per_sequence = 0;  // all layers of the role; 0 for paged roles
  std::int64_t blocks_per_layer = 0;    // paged roles, the null block included
  std::int64_t total_bytes = 0;         // allocated bytes, padding included
};

struct MemoryPlan {
  CacheLimits limits;
  std::vector<PlannedRegion> regions;     // one per role the model has
  std::vector<std::int64_t> pool_blocks;  // per layer and paged role, by layer; the null block included
  std::int64_t block_table_bytes = 0;     // device tables of every pool
  std::int64_t step_metadata_bytes = 0;
  double bytes_per_token = 0;
  std::int64_t bytes_per_sequence = 0;
  std::int64_t sharing_unit_tokens = 0;
  std::int64_t prefix_unit_tokens = 0;  // prefixes are cached by units of so many tokens
  std::int64_t bytes_per_boundary_state = 0;
  std::int64_t boundary_state_bytes = 0;  // bytes of CacheLimits::boundary_states states
  std::int64_t table_row_bytes = 0;       // one sequence's rows of all block tables, to begin one from a prefix
  std::int64_t total_bytes = 0;           // everything above
};

}  // namespace dsv4rt
