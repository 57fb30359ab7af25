// Attention of tokens with many rows on Hopper: dense_plan.cuh says how.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/dense_heads.cuh"
#include "backend/cuda/kernels/attend/dense_rows.cuh"
#include "backend/cuda/kernels/attend/query_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline void consume_dense(const AttendParams& p, const CUtensorMap& queries, const DensePass& pass,
                                     DenseShared& shared) {
  const int items = pass.items();
  const auto copy = [&](int item) {
    if (threadIdx.x == 0 && item < items) {
      copy_queries(queries, pass.token(item) * p.heads + pass.first_head(item), shared);
    }
  };
  wait_for_predecessors();
  copy(static_cast<int>(blockIdx.x));
  DenseConsumer consumer(shared);
  int n = 0;
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x), ++n) {
    barrier_wait(shared_address(&shared.item_full[n % 2]), n / 2 & 1);
    barrier_wait(shared_address(&shared.q_full), n & 1);
    const auto next = [&] { copy(item + static_cast<int>(gridDim.x)); };
    const bool empty = shared.item[n % 2].rows == 0;
    if (empty) {
      named_sync(DenseConsumer::kBarrier, kDenseConsumers);
      next();
    } else {
      consumer.run(n, next);
    }
    // Every thread for itself, since every thread has read the item: racecheck does not see a warp behind one of its
    // lanes.
    barrier_arrive(shared_address(&shared.item_empty[n % 2]));
    if (empty) continue;
    const std::int64_t place = pass.place(item);
    consumer.write(pass.sums + place * kSplitQuads, pass.states + place * kSplitStates);
  }
}

__device__ inline void produce_dense(const AttendParams& p, const DensePass& pass, DenseShared& shared) {
  int fills = 0;
  int n = 0;
  int item = 0;  // from here, or it would be in a register before
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(item));
#pragma unroll 1
  for (; item < pass.items(); item += static_cast<int>(gridDim.x), ++n) {
    int thread = 0;  // read for every item: what follows from it would otherwise be kept in registers, or spilled
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    thread -= kDenseConsumers;
    const int slot = thread / 128;
    const TokenRows rows = token_rows(p, pass.token(item));
    if (n == 0) wait_for_predecessors();  // the step's positions are there before
    const DenseSplits splits(rows.count);
    const int split = item / (pass.tokens * pass.groups);
    DenseItem work{};
    int first_row = 0;
    if (rows.is_dense() && split < splits.count) {
      first_row = splits.first_tile(split) * kTileRows;
      work.rows = min(rows.count, splits.first_tile(split + 1) * kTileRows) - first_row;
    }
    if (thread == 0) {
      if (n >= 2) barrier_wait(shared_address(&shared.item_empty[n % 2]), (n / 2 - 1) & 1);
      shared.item[n % 2] = work;
      barrier_arrive(shared_address(&shared.item_full[n % 2]));
    }
    __syncwarp();
    const int count = ((work.rows + kUnitRows - 1) / kUnitRows + 1 - slot) / 2;
    DenseProducer(p, rows, first_row, fills, thread, shared).run(fills, fills + count);
    fills += count;
  }
}

// Whether this block has anything to do; needs no more than the step's positions.
__device__ inline bool any_dense(const AttendParams& p, const DensePass& pass) {
  for (int item = static_cast<int>(blockIdx.x); item < pass.items(); item += static_cast<int>(gridDim.x)) {
    if (token_rows(p, pass.token(item)).is_dense()) return true;
  }
  return false;
}

#endif

// Grid: any number of blocks. `queries`: rows of a head's values, in boxes of 64 x 64.
__global__ void __launch_bounds__(kDenseThreads, 1)
    attend_dense_kernel(const __grid_constant__ AttendParams p, const __grid_constant__ CUtensorMap queries,
                        const __grid_constant__ DensePass pass) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte dense_shared[];
  auto& shared = *reinterpret_cast<DenseShared*>(dense_shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      for (auto& half : shared.full[i]) barrier_init(shared_address(&half), kFullArrivals);
      for (auto& half : shared.empty[i]) barrier_init(shared_address(&half), kDenseConsumers / 32);
      barrier_init(shared_address(&shared.item_full[i]), 1);
      barrier_init(shared_address(&shared.item_empty[i]), kDenseConsumers);
    }
    barrier_init(shared_address(&shared.q_full), 1);
    barrier_init_fence();
  }
  allow_dependents();
  if (!any_dense(p, pass)) {
    wait_for_predecessors();
    return;
  }
  __syncthreads();
  if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0) < kDenseConsumers / 32) {
    take_registers<184>();
    consume_dense(p, queries, pass, shared);
  } else {
    give_registers<72>();
    produce_dense(p, pass, shared);
  }
#endif
}

}  // namespace dsv4rt::cuda
