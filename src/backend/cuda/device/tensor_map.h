// Tensor maps: what the copy engine needs to know of a matrix in device memory.
#pragma once

#include <cstdint>
#include <cuda.h>

#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// Rows of BF16 (2-byte) or byte values, copied in boxes of 128 bytes x box_rows with the 128-byte swizzle;
// what a box holds beyond the matrix reads as zero.
struct RowMap {
  const void* data = nullptr;  // 16-byte aligned
  int value_bytes = 0;         // 1 or 2
  std::int64_t columns = 0;
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;  // distance between rows; a multiple of 16
  int box_columns = 0;         // 128 / value_bytes
  int box_rows = 0;            // 256 or fewer
  // Not 0: so many matrices, one behind the other; a box is of one of them, and its place has three numbers.
  std::int64_t matrices = 0;
};

// Runs on the host alone. kUnsupported when the driver has no tensor maps, kInvalidArgument for what it refuses.
Status encode_row_map(const RowMap& rows, CUtensorMap& map);

}  // namespace dsv4rt::cuda
