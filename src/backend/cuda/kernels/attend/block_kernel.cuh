// Attention of 64 query heads of a token, or of a KV split of it, by a block on Hopper: block_plan.cuh and
// dense_plan.cuh say how.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_heads.cuh"
#include "backend/cuda/kernels/attend/block_rows.cuh"
#include "backend/cuda/kernels/attend/dense_plan.cuh"
#include "backend/cuda/kernels/attend/query_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Places of the window's rows, by the producers.
__device__ inline void place_window_rows(const AttendParams& p, const TokenRows& rows, int thread, RowSlot* places) {
  if (thread < rows.window) {
    places[thread] = window_slot(p, rows.place, rows.place.position - rows.window + 1 + thread);
  }
}

// Places of all rows of a token.
__device__ inline TokenRows place_block_rows(const AttendParams& p, std::int64_t token, int thread, RowSlot* places) {
  constexpr int kPerThread = (kMappedRows + kBlockProducers - 1) / kBlockProducers;
  std::int32_t row[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int index = thread + i * kBlockProducers;
    row[i] = index;
    if (p.topk_indices != nullptr && index < p.topk_stride) {
      row[i] = load_index(p.topk_indices + token * p.topk_stride + index);
    }
  }
  const TokenRows rows = token_rows(p, token);
  const int compressed = min(rows.count - rows.window, kMappedRows);
  place_window_rows(p, rows, thread, places);
  RowSlot place[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (thread + i * kBlockProducers < compressed) place[i] = row_slot(p, rows.place.slot, row[i]);
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (thread + i * kBlockProducers < compressed) places[kMappedWindow + thread + i * kBlockProducers] = place[i];
  }
  return rows;
}

// Zeros for the outputs of a token without rows, by the consumers.
__device__ inline void write_block_zeros(const AttendParams& p, const BlockItem& item) {
  constexpr int kUnits = kHeadDim / kUnitValues;
  const int heads = min(kTileHeads, p.heads - item.first_head);
  bf16* first = p.o + (std::int64_t{item.token} * p.heads + item.first_head) * kHeadDim;
  for (int i = static_cast<int>(threadIdx.x); i < heads * kUnits; i += kBlockConsumers) {
    reinterpret_cast<uint4*>(first)[i] = uint4{};
  }
}

// The block's `i`-th item of a pass. Read anew: a register, or a spilled one, would hold it through the tiles.
__device__ inline int block_item(int i) {
  int block;
  int blocks;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
  return block + i * blocks;
}

// The block's items from the `begin`-th on. `n`: items that
// the block has had before, in either of its rounds, for the phases of barriers. kShifted: heads may have a shift.
template <bool kShifted, class Pass>
__device__ inline void consume_items(const AttendParams& p, const CUtensorMap& queries, const Pass& pass, int begin,
                                     int& n, BlockShared& shared) {
  const auto copy = [&](int i) {
    if (threadIdx.x != 0) return;
    const int item = block_item(i);
    if (item < pass.items()) copy_queries(queries, pass.token(item) * p.heads + pass.first_head(item), shared);
  };
  copy(begin);
#pragma unroll 1
  for (int i = begin; block_item(i) < pass.items(); ++i, ++n) {
    barrier_wait(shared_address(&shared.item_full[n % 2]), n / 2 & 1);
    barrier_wait(shared_address(&shared.q_full), n & 1);
    const auto next = [&] { copy(i + 1); };
    if (shared.item[n % 2].rows > 0) {
      BlockConsumer<Pass::kSplits> consumer(p, n, shared);
      float greatest[2];
      if constexpr (kShifted) consumer.find_greatest(greatest);
      const bool uncertain = consumer.template sum<kShifted>(greatest, next);
      if (!kShifted && uncertain) atomicMin(&shared.first_shifted, i);
      if constexpr (Pass::kSplits) {
        const std::int64_t place = pass.place(block_item(i));
        consumer.template write_sums<kShifted>(pass.sums + place * kSplitQuads, pass.states + place * kTileHeads);
      } else {
        consumer.write();
      }
    } else {
      if (shared.item[n % 2].rows == 0) write_block_zeros(p, shared.item[n % 2]);
      named_sync(kBlockConsumersBarrier, kBlockConsumers);
      barrier_arrive(shared_address(&shared.maxima[n % 2]));  // so that its phase goes with the items
      next();
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&shared.item_empty[n % 2]));
  }
}
template <bool kShifted, class Pass>
__device__ inline void produce_items(const AttendParams& p, const Pass& pass, int begin, int& n, int (&filled)[2],
                                     BlockShared& shared) {
#pragma unroll 1
  for (int i = begin; block_item(i) < pass.items(); ++i, ++n) {
    const int item = block_item(i);
    int thread = 0;  // read for every item: what follows from it would otherwise be kept in registers, or spilled
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    thread -= kBlockConsumers;
    // The places two items before are not looked up any more: their rows are in the slots.
    TokenRows rows;
    if constexpr (Pass::kSplits) {
      rows = token_rows(p, pass.token(item));
      place_window_rows(p, rows, thread, shared.place[n % 2]);
    } else {
      rows = place_block_rows(p, pass.token(item), thread, shared.place[n % 2]);
    }
    const ItemRows own = pass.rows(rows, item);
    if (thread >= kBlockProducers - 32) {
      if (n >= 2) barrier_wait(shared_address(&shared.item_empty[n % 2]), (n / 2 - 1) & 1);
      const int pair = thread % 32;
      if (pair == 0) {
        shared.item[n % 2] = {.token = pass.token(item),
                              .first_head = pass.first_head(item),
                              .rows = own.count,
                              .reference_rows = Pass::kSplits ? 2 * kTileRows : rows.window,
                              .filled = {filled[0], filled[1]},
                              .phase = n / 2 & 1};
      }
      if (!Pass::kSplits && own.count > 0 && p.output_rope.inverse_frequency != nullptr) {
        shared.rotation[n % 2][pair] = rotation_of(p.output_rope, rows.place.position, pair);
      }
      __syncwarp();
      if (pair == 0) barrier_arrive(shared_address(&shared.item_full[n % 2]));
    }
    named_sync(kBlockProducersBarrier, kBlockProducers);
    if (own.count <= 0) continue;
    BlockProducer<Pass::kSplits> producer(p, rows, own, shared.place[n % 2], shared);
#pragma unroll 1
    for (int round = 0; round < (kShifted ? 2 : 1); ++round) producer.run(filled);
  }
}

// Whether this block has anything to do.
template <class Pass>
__device__ inline bool any_item(const AttendParams& p, const Pass& pass) {
  for (int i = 0; block_item(i) < pass.items(); ++i) {
    if (pass.takes(token_rows(p, pass.token(block_item(i))))) return true;
  }
  return false;
}

#endif

// Grid: any number of blocks. `queries`: rows of a head's values, in boxes of 64 x 64. Pass: BlockPass for tokens of
// up to kMaximumRows rows or selected ones, DensePass for the others.
template <class Pass>
__global__ void __launch_bounds__(kBlockThreads, 1)
    attend_block_kernel(const __grid_constant__ AttendParams p, const __grid_constant__ CUtensorMap queries,
                        const __grid_constant__ Pass pass) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte block_shared[];
  auto& shared = *reinterpret_cast<BlockShared*>(block_shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.full[i]), kBlockProducers / 32 + kBlockProducers);
      barrier_init(shared_address(&shared.empty[i]), kBlockConsumers / 32);
      barrier_init(shared_address(&shared.maxima[i]), kBlockConsumers);
      barrier_init(shared_address(&shared.item_full[i]), 1);
      barrier_init(shared_address(&shared.item_empty[i]), kBlockConsumers / 32);
    }
    barrier_init(shared_address(&shared.q_full), 1);
    barrier_init_fence();
    shared.first_shifted = kNoItem;
  }
  allow_dependents();
  if (!pass.takes_all() && !any_item(p, pass)) {
    wait_for_predecessors();
    return;
  }
  wait_for_predecessors();
  __syncthreads();
  int n = 0;
  if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0) < kBlockConsumers / 32) {
    take_registers<kBlockConsumerRegisters>();
    consume_items<false>(p, queries, pass, 0, n, shared);
    named_sync(kBlockConsumersBarrier, kBlockConsumers);
    named_arrive(kShiftsBarrier, kBlockThreads);
    const int again = shared.first_shifted;
    if (again != kNoItem) consume_items<true>(p, queries, pass, again, n, shared);
  } else {
    give_registers<kBlockProducerRegisters>();
    int filled[2] = {0, 0};
    produce_items<false>(p, pass, 0, n, filled, shared);
    named_sync(kShiftsBarrier, kBlockThreads);
    const int again = shared.first_shifted;
    if (again != kNoItem) produce_items<true>(p, pass, again, n, filled, shared);
  }
#endif
}

}  // namespace dsv4rt::cuda
