// Window rows: made and staged for the step's tokens, then moved into the rings.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/copy_bytes.cuh"
#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/cuda/kernels/common/row_encode.cuh"
#include "backend/cuda/kernels/common/token_place.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

// A block per token, four values a thread. Padding stages a row of zeros whatever its input holds.
__global__ __launch_bounds__(kRowQuads) void window_rows_kernel(const __grid_constant__ WindowRowsParams p) {
  __shared__ float4 row[kRowQuads];
  __shared__ std::uint32_t warp_amax[kRowQuads / 32];
  const std::int64_t token = blockIdx.x;
  const int quad = static_cast<int>(threadIdx.x);
  const TokenPlace place = token_place(p.step, token);
  uint2 packed{};
  if (place.real) packed = reinterpret_cast<const uint2*>(p.kv + token * kHeadDim)[quad];
  row[quad] = make_float4(__uint_as_float(packed.x << 16U), __uint_as_float(packed.x & 0xffff0000U),
                          __uint_as_float(packed.y << 16U), __uint_as_float(packed.y & 0xffff0000U));
  __syncthreads();
  float v[4];
  normalize_quad(reinterpret_cast<const float*>(row), kHeadDim, p.norm_weight, p.eps, quad, v);
  rotate_quad(p.rope, place.position, kHeadDim, quad, v);
  encode_row_quad(p.format, p.staged_shape, v, quad, p.staged, token, warp_amax);
}

inline constexpr int kStoreWarps = 4;

// A warp per token. Only the last ring_rows tokens of a sequence are moved, so no two write one row.
__global__ __launch_bounds__(32 * kStoreWarps) void window_store_kernel(const __grid_constant__ WindowStoreParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t token = std::int64_t{blockIdx.x} * kStoreWarps + static_cast<int>(threadIdx.x) / 32;
  if (token >= p.step.counts.tokens) return;
  const TokenPlace place = token_place(p.step, token);
  const BlockShape& shape = p.ring.shape;
  if (!place.real || token < std::int64_t{place.end_token} - shape.rows) return;
  std::byte* ring = p.ring.base + place.slot * p.ring.slot_bytes;
  const std::int64_t row = place.position % shape.rows;
  copy_bytes(ring + shape.data_offset(row), p.staged + p.staged_shape.data_offset(token), shape.data_bytes, lane, 32);
  copy_bytes(ring + shape.scale_offset(row), p.staged + p.staged_shape.scale_offset(token), shape.scale_bytes, lane,
             32);
}

}  // namespace dsv4rt::cuda
