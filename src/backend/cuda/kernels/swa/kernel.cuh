// Staged window rows into the rings.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/copy_bytes.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/token_position.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kStoreWarps = 4;

// A warp per token. Only the last ring_rows tokens of a sequence are moved, so no two write one row.
__global__ __launch_bounds__(32 * kStoreWarps) void window_store_kernel(const __grid_constant__ SwaCacheWriteParams p) {
  allow_dependents();
  wait_for_predecessors();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t token = std::int64_t{blockIdx.x} * kStoreWarps + static_cast<int>(threadIdx.x) / 32;
  if (token >= p.step.counts.tokens) return;
  const TokenPosition place = token_position(p.step, token);
  const BlockShape& shape = p.ring.shape;
  if (!place.real || token < std::int64_t{place.end_token} - shape.rows) return;
  std::byte* ring = p.ring.base + place.slot * p.ring.slot_bytes;
  const std::int64_t row = place.position % shape.rows;
  copy_bytes(ring + shape.data_offset(row), p.staged + p.staged_shape.data_offset(token), shape.data_bytes, lane, 32);
  copy_bytes(ring + shape.scale_offset(row), p.staged + p.staged_shape.scale_offset(token), shape.scale_bytes, lane,
             32);
}

}  // namespace dsv4rt::cuda
