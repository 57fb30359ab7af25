// Where the rows of a cluster's token lie, looked up by all threads of a block.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/attend/token_rows.cuh"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"

namespace dsv4rt::cuda {

// Places of window rows and of the first compressed rows. Selected rows are read before position_of() tells the token's
// place.
template <int kThreads, class PositionOf>
__device__ inline TokenRows place_rows(const AttendParams& p, std::int64_t token, RowSlot* shared_slots,
                                       const PositionOf& position_of) {
  constexpr int kPerThread = (kMappedRows + kThreads - 1) / kThreads;
  const int thread = static_cast<int>(threadIdx.x);
  std::int32_t row[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int index = thread + i * kThreads;
    row[i] = index;
    if (p.topk_indices != nullptr && index < p.topk_stride) {
      row[i] = load_index(p.topk_indices + token * p.topk_stride + index);
    }
  }
  const TokenRows rows = token_rows(p, token, position_of);
  const int compressed = min(rows.count - rows.window, kMappedRows);
  if (thread < rows.window) {
    const std::int32_t position = rows.place.position - rows.window + 1 + thread;
    shared_slots[thread] = window_slot(p, rows.place, position);
  }
  RowSlot place[kPerThread] = {};
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (thread + i * kThreads < compressed) place[i] = row_slot<true>(p, rows.place.slot, row[i]);
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (thread + i * kThreads < compressed) {
      shared_slots[kMappedWindow + thread + i * kThreads] = place[i];
    }
  }
  return rows;
}

}  // namespace dsv4rt::cuda
