// Where the rows of a cluster's token lie, looked up by all threads of a block.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/attend/token_rows.cuh"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"

namespace dsv4rt::cuda {

// Places of a token's window rows, by as many of the first threads.
__device__ inline void place_window_rows(const AttendParams& p, const TokenPosition& place, std::int32_t window,
                                         RowSlot* slots) {
  const auto row = static_cast<std::int32_t>(threadIdx.x);
  if (row < window) slots[row] = window_slot(p, place, place.position - window + 1 + row);
}

// The first compressed rows of a token whose places one of kThreads threads looks up.
template <int kThreads>
class CompressedPlaces {
 public:
  // Which rows these are: selected ones are read.
  __device__ CompressedPlaces(const AttendParams& p, std::int64_t token, int thread) : thread_(thread) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int index = thread + i * kThreads;
      row_[i] = index;
      if (p.topk_indices != nullptr && index < p.topk_stride) {
        row_[i] = load_index(p.topk_indices + token * p.topk_stride + index);
      }
    }
  }
  __device__ void look_up(const AttendParams& p, const TokenRows& rows, RowSlot* slots) const {
    const int compressed = min(rows.count - rows.window, kMappedRows);
    RowSlot place[kPerThread] = {};
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (thread_ + i * kThreads < compressed) place[i] = row_slot<true>(p, rows.place.slot, row_[i]);
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (thread_ + i * kThreads < compressed) slots[thread_ + i * kThreads] = place[i];
    }
  }

 private:
  static constexpr int kPerThread = (kMappedRows + kThreads - 1) / kThreads;
  int thread_;
  std::int32_t row_[kPerThread];
};

// Of all rows, by the kThreads threads of a block: window rows' places in front of kMappedWindow. Selected rows are
// read before position_of() tells the token's place.
template <int kThreads, class PositionOf>
__device__ inline TokenRows place_rows(const AttendParams& p, std::int64_t token, RowSlot* slots,
                                       const PositionOf& position_of) {
  const CompressedPlaces<kThreads> compressed(p, token, static_cast<int>(threadIdx.x));
  const TokenRows rows = token_rows(p, token, position_of);
  place_window_rows(p, rows.place, rows.window, slots);
  compressed.look_up(p, rows, slots + kMappedWindow);
  return rows;
}

}  // namespace dsv4rt::cuda
