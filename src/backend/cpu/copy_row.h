// Copies of whole rows between blocks of one row format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "layout/row_format.h"

namespace dsv4rt::cpu {

// Row `from_row` of a block into row `to_row` of another, data and scales. Both shapes have the same bytes a row.
inline void copy_row(const BlockShape& from_shape, const std::byte* from, std::int64_t from_row,
                     const BlockShape& to_shape, std::byte* to, std::int64_t to_row) {
  std::memcpy(to + to_shape.data_offset(to_row), from + from_shape.data_offset(from_row),
              static_cast<std::size_t>(to_shape.data_bytes));
  std::memcpy(to + to_shape.scale_offset(to_row), from + from_shape.scale_offset(from_row),
              static_cast<std::size_t>(to_shape.scale_bytes));
}

}  // namespace dsv4rt::cpu
