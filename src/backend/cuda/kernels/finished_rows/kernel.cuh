// Rows that tokens have completed, out of the cache and into it, packed in one block in between.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/copy_bytes.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/token_position.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kFinishedWarps = 8;

// The bytes of row `from_row` of one block into row `to_row` of another, by a warp. Data and scales lie apart.
__device__ inline void copy_row(const BlockShape& to_shape, std::byte* to, std::int64_t to_row,
                                const BlockShape& from_shape, const std::byte* from, std::int64_t from_row, int lane) {
  copy_bytes(to + to_shape.data_offset(to_row), from + from_shape.data_offset(from_row), from_shape.data_bytes, lane,
             32);
  copy_bytes(to + to_shape.scale_offset(to_row), from + from_shape.scale_offset(from_row), from_shape.scale_bytes, lane,
             32);
}

// A warp per 32 tokens: lanes find out which of them have completed a row, then all of them copy one after another.
__global__ __launch_bounds__(32 *
                             kFinishedWarps) void finished_rows_kernel(const __grid_constant__ FinishedRowsParams p,
                                                                       RowDirection direction) {
  allow_dependents();
  wait_for_predecessors();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t first = (std::int64_t{blockIdx.x} * kFinishedWarps + static_cast<int>(threadIdx.x) / 32) * 32;
  const bool completes = first + lane < p.step.counts.tokens && p.step.valid_mask[p.ratio_class][first + lane] != 0 &&
                         p.step.token_sequence[first + lane] >= 0;
  for (unsigned left = __ballot_sync(0xffffffffU, completes); left != 0; left &= left - 1) {
    const auto token = static_cast<std::int32_t>(first) + __ffs(static_cast<int>(left)) - 1;
    const TokenPosition place = token_position(p.step, token);
    const std::int32_t row = p.step.row_index[p.ratio_class][token];
    const BlockShape& shape = p.rows.shape;
    const std::int64_t id = p.rows.block_table[place.slot * p.rows.table_stride + row / shape.rows];
    std::byte* const block = p.rows.blocks + id * shape.block_bytes;
    const std::int32_t packed_row =
        packed_place(token, p.ratio, p.step.token_sequence[token], p.step.token_sequence[0]);
    if (direction == RowDirection::kFromCache) {
      copy_row(p.packed_shape, p.packed, packed_row, shape, block, row % shape.rows, lane);
    } else {
      copy_row(shape, block, row % shape.rows, p.packed_shape, p.packed, packed_row, lane);
    }
  }
}

}  // namespace dsv4rt::cuda
