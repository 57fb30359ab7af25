// Where the rows of a token lie, looked up by many threads.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/attend/token_rows.cuh"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/early_reads.cuh"

namespace dsv4rt::cuda {

// Places of a token's window rows, by as many of the first threads.
__device__ inline void place_window_rows(const AttendParams& p, const TokenPosition& place, std::int32_t window,
                                         RowSlot* slots) {
  const auto row = static_cast<std::int32_t>(threadIdx.x);
  if (row < window) slots[row] = window_slot(p, place, place.position - window + 1 + row);
}

// What is built before the wait for the kernels in front computes there what does not depend on these: instructions
// that run for the first time behind the wait hold up all that follows.

// Finds where packed compressed rows of a sequence lie.
class PackedRowFinder {
 public:
  __device__ PackedRowFinder(const AttendParams& p, std::int32_t slot) {
    table_ = p.rows.block_table + slot * p.rows.table_stride;
    shift_ = max(__ffs(p.rows.shape.rows) - 1, 0);  // layers without compressed rows have blocks of none
    asm volatile("" : "+l"(table_), "+r"(shift_));
  }
  // Starts to look up the block of a row, if there `is` one.
  __device__ void look_up(bool is, std::int32_t row, std::uint32_t& block) const {
    load_early_if(is, reinterpret_cast<const std::byte*>(table_ + (row >> shift_)), block);
  }
  [[nodiscard]] __device__ RowSlot place(std::uint32_t block, std::int32_t row) const {
    return (block << shift_) | (static_cast<std::uint32_t>(row) & ((1u << shift_) - 1));
  }

 private:
  const std::int32_t* table_;
  int shift_;
};

// The first compressed rows of a token whose places one of kThreads threads looks up, all at once: without a branch for
// each, in which the compiler would wait for it.
template <int kThreads>
class CompressedPlaces {
 public:
  __device__ CompressedPlaces(const AttendParams& p, std::int64_t token, int thread)
      : thread_(thread),
        most_(static_cast<std::int32_t>(most_compressed_rows(p))),
        stride_(static_cast<std::int32_t>(p.topk_stride)) {
    asm volatile("" : "+r"(most_));
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) row_[i] = static_cast<std::uint32_t>(index(i));
    if (p.topk_indices == nullptr) return;
    selected_ = p.topk_indices + token * p.topk_stride + thread;
    count_of_selected_ = p.topk_count + token;
    asm volatile("" : "+l"(selected_), "+l"(count_of_selected_));
  }
  // Which rows these are, and how many, where they are selected.
  __device__ void read_selected() {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      load_if(index(i) < stride_, reinterpret_cast<const std::byte*>(selected_ + i * kThreads), row_[i]);
    }
    count_ = load_index(count_of_selected_);
  }
  [[nodiscard]] __device__ TokenRows rows(const AttendParams& p, std::int64_t token, const TokenPosition& place) const {
    return token_rows(p, token, place, count_, most_);
  }
  // Of `count` rows.
  __device__ void look_up(const PackedRowFinder& finder, int count, RowSlot* slots) const {
    std::uint32_t block[kPerThread] = {};
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) finder.look_up(index(i) < count, row(i), block[i]);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (index(i) < min(count, kMappedRows)) slots[index(i)] = finder.place(block[i], row(i));
    }
  }

 private:
  static constexpr int kPerThread = (kMappedRows + kThreads - 1) / kThreads;
  [[nodiscard]] __device__ int index(int i) const {
    return thread_ + i * kThreads;
  }
  [[nodiscard]] __device__ std::int32_t row(int i) const {
    return static_cast<std::int32_t>(row_[i]);
  }

  int thread_;
  std::int32_t most_;
  std::int32_t stride_;
  std::int32_t count_ = 0;
  const std::int32_t* selected_ = nullptr;
  const std::int32_t* count_of_selected_ = nullptr;
  std::uint32_t row_[kPerThread];
};

// Places of a token's compressed rows to `slots`, by kThreads threads. `selected`: whether rows are. Those are known
// when the kernels in front have ended: these are waited for then, and start_queries() comes behind loads that all
// threads wait for. What is not selected is looked up before a wait, which is left to the caller.
template <int kThreads, class StartQueries>
__device__ inline TokenRows place_compressed_rows(const AttendParams& p, const PackedRowFinder& finder,
                                                  std::int64_t token, bool selected, const TokenPosition& position,
                                                  int thread, RowSlot* slots, const StartQueries& start_queries) {
  CompressedPlaces<kThreads> compressed(p, token, thread);
  if (selected) {
    wait_for_predecessors();
    compressed.read_selected();
    start_queries();
  }
  const TokenRows rows = compressed.rows(p, token, position);
  compressed.look_up(finder, rows.count - rows.window, slots);
  return rows;
}

}  // namespace dsv4rt::cuda
