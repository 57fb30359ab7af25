// Window rows: made and staged for the step's tokens, and stored in the rings.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/row_encode.cuh"
#include "backend/cuda/kernels/common/row_finish.cuh"
#include "backend/cuda/kernels/common/token_position.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

struct WindowRowShared {
  float4 row[kRowQuads];
  std::uint32_t warp_amax[kRowQuads / 32];
};

// The row of `token`, for a group of kRowQuads threads. It is staged, and stored in its ring unless ring.base is
// null: only the last ring_rows tokens of a sequence are, so that no two write one row. Padding stages a row of
// zeros whatever its input holds.
__device__ inline void window_row(const SwaKvParams& p, const SwaRing& ring, std::int64_t token,
                                  const RowGroup<kRowQuads>& group, WindowRowShared& shared) {
  const int quad = group.thread;
  const TokenPosition place = token_position(p.step, token);
  const RowFinish finish(p.norm_weight, p.rope, place.position, kHeadDim, quad);
  const std::int64_t ring_row = ring.base == nullptr ? 0 : place.position % ring.shape.rows;
  wait_for_predecessors();

  uint2 packed{};
  if (place.real) packed = reinterpret_cast<const uint2*>(p.kv + token * kHeadDim)[quad];
  shared.row[quad] = make_float4(low_value(packed.x), high_value(packed.x), low_value(packed.y), high_value(packed.y));
  group.sync();
  float v[4];
  finish.apply(reinterpret_cast<const float*>(shared.row), kHeadDim, p.eps, quad, v);
  encode_row_quad(p.format, p.staged_shape, v, group, p.staged, p.staged_first + token, shared.warp_amax);
  if (ring.base == nullptr || !place.real || token < std::int64_t{place.end_token} - ring.shape.rows) return;
  group.sync();  // warp_amax is written anew
  encode_row_quad(p.format, ring.shape, v, group, ring.base + place.slot * ring.slot_bytes, ring_row, shared.warp_amax);
}

}  // namespace dsv4rt::cuda
