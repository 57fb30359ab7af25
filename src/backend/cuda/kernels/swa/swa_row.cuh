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

// The rows of tokens, each by a group of kRowQuads threads. A row is staged, and stored in its ring unless ring.base is
// null: only the last ring_rows tokens of a sequence are, so that no two write one row. Padding stages a row of zeros
// whatever its input holds.
class WindowRow {
 public:
  // Reads the step, but nothing that a kernel before this one writes.
  __device__ WindowRow(const SwaKvParams& params, const SwaRing& ring, std::int64_t token, int quad)
      : p_(params),
        ring_(ring),
        token_(token),
        place_(token_position(params.step, token)),
        finish_(params.norm_weight, params.rope, place_.position, kHeadDim, quad),
        ring_row_(ring.base == nullptr ? 0 : place_.position % ring.shape.rows) {}

  // The thread's four values of the projection.
  [[nodiscard]] __device__ uint2 values(int quad) const {
    return place_.real ? reinterpret_cast<const uint2*>(p_.kv + token_ * kHeadDim)[quad] : uint2{};
  }
  __device__ void write(uint2 values, const RowGroup<kRowQuads>& group, WindowRowShared& shared) const {
    const int quad = group.thread;
    shared.row[quad] =
        make_float4(low_value(values.x), high_value(values.x), low_value(values.y), high_value(values.y));
    group.sync();
    float v[4];
    finish_.apply(reinterpret_cast<const float*>(shared.row), kHeadDim, p_.eps, quad, v);
    encode_row_quad(p_.format, p_.staged_shape, v, group, p_.staged, p_.staged_first + token_, shared.warp_amax);
    if (ring_.base == nullptr || !place_.real || token_ < std::int64_t{place_.end_token} - ring_.shape.rows) return;
    group.sync();  // warp_amax is written anew
    encode_row_quad(p_.format, ring_.shape, v, group, ring_.base + place_.slot * ring_.slot_bytes, ring_row_,
                    shared.warp_amax);
  }

 private:
  const SwaKvParams& p_;
  const SwaRing& ring_;
  std::int64_t token_;
  TokenPosition place_;
  RowFinish finish_;
  std::int64_t ring_row_;
};

__device__ inline void write_window_row(const SwaKvParams& p, const SwaRing& ring, std::int64_t token,
                                        const RowGroup<kRowQuads>& group, WindowRowShared& shared) {
  const WindowRow row(p, ring, token, group.thread);
  wait_for_predecessors();
  row.write(row.values(group.thread), group, shared);
}

// Of the tokens [first, end), one after the other: a token's values come while the row before is written.
__device__ inline void write_window_rows(const SwaKvParams& p, const SwaRing& ring, std::int64_t first,
                                         std::int64_t end, const RowGroup<kRowQuads>& group, WindowRowShared& shared) {
  wait_for_predecessors();
  uint2 values = WindowRow(p, ring, first, group.thread).values(group.thread);
#pragma unroll 1
  for (std::int64_t token = first; token < end; ++token) {
    const WindowRow row(p, ring, token, group.thread);
    const uint2 own = values;
    if (token + 1 < end) values = WindowRow(p, ring, token + 1, group.thread).values(group.thread);
    row.write(own, group, shared);
    group.sync();  // the row is not needed any more
  }
}

}  // namespace dsv4rt::cuda
