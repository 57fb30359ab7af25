// How many rows and blocks a number of tokens makes in a paged role.
#pragma once

#include <cstdint>

#include "base/arithmetic.h"
#include "cache/cache_layout.h"

namespace dsv4rt {

// Blocks that hold the finished rows of `tokens` tokens; rows of unfinished compressor blocks live
// in the state ring.
constexpr std::int64_t blocks_for_tokens(std::int64_t tokens, std::int64_t ratio, std::int64_t rows_per_block) {
  return ceil_div(tokens / ratio, rows_per_block);
}

inline std::int64_t blocks_for_tokens(const PoolSpec& pool, std::int64_t tokens) {
  return blocks_for_tokens(tokens, pool.ratio, pool.shape.rows);
}

// Columns of the pool's device block table. At least one, so that every pool has a table.
inline std::int64_t block_table_columns(const PoolSpec& pool, std::int64_t max_context_tokens) {
  const std::int64_t blocks = blocks_for_tokens(pool, max_context_tokens);
  return blocks > 0 ? blocks : 1;
}

}  // namespace dsv4rt
