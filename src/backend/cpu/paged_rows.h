// Address arithmetic of paged rows.
#pragma once

#include <cstdint>

#include "backend/ops.h"

namespace dsv4rt::cpu {

// Byte offset from `rows.blocks` of the block that holds the sequence's row.
inline std::int64_t block_offset(const PagedRows& rows, std::int32_t slot, std::int64_t row) {
  const std::int32_t block = rows.block_table[slot * rows.table_stride + row / rows.shape.rows];
  return block * rows.shape.block_bytes;
}

// Compressed rows that a query at `position` sees: a block's last token sees its own block.
inline std::int32_t visible_rows(std::int32_t position, std::int32_t ratio) {
  return ratio > 0 ? (position + 1) / ratio : 0;
}

}  // namespace dsv4rt::cpu
