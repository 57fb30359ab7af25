// Attention of 64 query heads of one token on Hopper: warpgroup_plan.cuh says how.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/query_copy.cuh"
#include "backend/cuda/kernels/attend/warpgroup_heads.cuh"
#include "backend/cuda/kernels/attend/warpgroup_rows.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

inline constexpr int kWarpgroupThreads = kConsumers + kProducers;

// What a launch takes of the step.
struct WarpgroupPass {
  std::int32_t first_token;
  std::int32_t tokens;
  std::int32_t group_heads;  // heads of a cluster
  bool dense;                // whether some of the tokens may be the dense kernel's
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Places of window rows and of the first compressed rows, by kThreads threads. Selected rows are read before
// position_of() tells the token's place.
template <int kBlocks, bool kTurns, int kThreads, class PositionOf>
__device__ inline TokenRows place_rows(const AttendParams& p, std::int64_t token, int thread, RowSlot* shared_slots,
                                       const PositionOf& position_of) {
  constexpr int kMapped = WarpgroupShared<kBlocks, kTurns>::kMapped;
  constexpr int kPerThread = (kMapped + kThreads - 1) / kThreads;
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
  const int compressed = min(rows.count - rows.window, kMapped);
  if (thread < rows.window) {
    const std::int32_t position = rows.place.position - rows.window + 1 + thread;
    shared_slots[thread] = window_slot(p, rows.place, position);
  }
  RowSlot place[kPerThread] = {};  // otherwise the previous token's would be kept
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (thread + i * kThreads < compressed) place[i] = row_slot<!kTurns>(p, rows.place.slot, row[i]);
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (thread + i * kThreads < compressed) {
      shared_slots[kMappedWindow + thread + i * kThreads] = place[i];
    }
  }
  return rows;
}

// Zeros for this block's slice of the outputs of a token without rows.
template <int kBlocks, bool kTurns>
__device__ inline void write_zeros(const AttendParams& p, std::int64_t token, int first_head, int heads, int rank,
                                   int threads) {
  constexpr int kUnits = KvSplit<kBlocks, kTurns>::kSliceValues / kUnitValues;
  for (int i = static_cast<int>(threadIdx.x); i < heads * kUnits; i += threads) {
    bf16* head = p.o + (token * p.heads + first_head + i / kUnits) * kHeadDim;
    reinterpret_cast<uint4*>(head + rank * KvSplit<kBlocks, kTurns>::kSliceValues)[i % kUnits] = uint4{};
  }
}

// The token of a cluster. Groups of heads of a token that blocks take alone follow one another: they read the same
// rows.
template <int kBlocks>
__device__ inline int token_of(const WarpgroupPass& pass, int groups) {
  return pass.first_token + static_cast<int>(blockIdx.x) / (kBlocks == 1 ? groups : kBlocks);
}

// One token, by a cluster, or by a block alone. Begins before the kernels in front have ended: where rows lie that are
// not selected is known by then, and so are most of them (early_reads.cuh).
template <int kBlocks, bool kTurns>
__device__ inline void attend_token(const AttendParams& p, const CUtensorMap& queries, const WarpgroupPass& pass,
                                    bool consumes, WarpgroupShared<kBlocks, kTurns>& shared) {
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const int groups = (p.heads + pass.group_heads - 1) / pass.group_heads;
  const std::int64_t token = token_of<kBlocks>(pass, groups);
  const int group = static_cast<int>(kBlocks == 1 ? blockIdx.x % groups : blockIdx.y);
  const int first_head = group * pass.group_heads;
  const int heads = min(pass.group_heads, p.heads - first_head);
  cluster_arrive();
  const auto take_turn = [&] {
    wait_for_predecessors();
    if (threadIdx.x == 0) copy_queries(queries, static_cast<int>(token) * p.heads + first_head, shared);
  };
  const TokenPosition place = token_position(p.step, token);
  const bool selected = p.topk_indices != nullptr;
  if (selected) take_turn();
  const TokenRows rows = place_rows<kBlocks, kTurns, kWarpgroupThreads>(p, token, static_cast<int>(threadIdx.x),
                                                                        shared.place[0], [&] { return place; });
  if (threadIdx.x == 0) {
    shared.work[0] = {.token = static_cast<std::int32_t>(token),
                      .first_head = first_head,
                      .heads = heads,
                      .rows = rows.count,
                      .window = rows.window};
  }
  __syncthreads();
  cluster_wait();
  if (rows.count == 0 || rows.is_dense()) {
    if (!selected) take_turn();
    barrier_wait(shared_address(&shared.q_full), 0);
    if (rows.count == 0) write_zeros<kBlocks, kTurns>(p, token, first_head, heads, rank, kWarpgroupThreads);
    return;
  }
  if (consumes) {
    take_registers<consumer_registers<kBlocks>()>();
    if (!selected) take_turn();
    HeadConsumer<kBlocks, kTurns>(p, 0, shared).run([](int) {});
  } else {
    give_registers<producer_registers<kBlocks>()>();
    const KvSplit<kBlocks, kTurns> split({.rows = rows.count}, rank);
    RowProducer<kBlocks, kTurns>(p, rows, split, shared.place[0], shared).run([](int, int) {});
    if (threadIdx.x < kConsumers + kRotatedPairs) {
      const int pair = static_cast<int>(threadIdx.x) - kConsumers;
      if (p.output_rope.inverse_frequency != nullptr) {
        shared.rotation[0][pair] = rotation_of(p.output_rope, rows.place.position, pair);
      }
      named_arrive(kOutputBarrier, kConsumers + 32);
    }
  }
  // Nobody leaves while others read its weights.
  cluster_arrive();
  cluster_wait();
}

// Row of an item's queries.
__device__ inline int query_row(const AttendParams& p, int groups, int item) {
  return item / groups * p.heads + item % groups * kTileHeads;
}

// Tokens one after the other, by a block: items `first`, first + gridDim.x, .. before `last`. Item i is the group
// i % groups of 64 heads of token i / groups. Tokens of the dense kernel have no rows here.
__device__ inline void consume_tokens(const AttendParams& p, const CUtensorMap& queries, int groups, int first,
                                      int last, WarpgroupShared<1, true>& shared) {
  const auto copy = [&](int item, int begin) {
    if (threadIdx.x != 0 || item >= last) return;
    copy_queries(queries, query_row(p, groups, item), shared, begin);
  };
  copy(first, 0);
  int token = 0;
  int parity = 0;
#pragma unroll 1
  for (int item = first; item < last; item += static_cast<int>(gridDim.x)) {
    barrier_wait(shared_address(&shared.token_full[token]), parity);
    if (shared.work[token].rows > 0) {
      HeadConsumer<1, true>(p, token, shared).run([&](int begin) {
        const WorkItem& work = shared.work[token];
        copy(work.token * groups + work.first_head / kTileHeads + static_cast<int>(gridDim.x), begin);
      });
    } else {
      if (shared.work[token].rows == 0) {
        write_zeros<1, true>(p, item / groups, shared.work[token].first_head, shared.work[token].heads, 0, kConsumers);
      }
      barrier_wait(shared_address(&shared.q_full), shared.work[token].parity);
      named_sync(kConsumersBarrier, kConsumers);
      copy(item + static_cast<int>(gridDim.x), 0);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&shared.token_empty[token]));
    token ^= 1;
    parity ^= token ^ 1;
  }
}
__device__ inline void produce_tokens(const AttendParams& p, const CUtensorMap& queries, int groups, int first,
                                      int last, WarpgroupShared<1, true>& shared) {
  WorkItem work{};
  int n = 0;
#pragma unroll 1
  for (int item = first; item < last; item += static_cast<int>(gridDim.x), ++n) {
    int thread = 0;  // read for every token: what follows from it would otherwise be kept in registers, or spilled
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    thread -= kConsumers;
    RowSlot* place = shared.place[n % 2];
    const std::int64_t token = item / groups;
    const TokenRows rows =
        place_rows<1, true, kProducers>(p, token, thread, place, [&] { return token_position(p.step, token); });
    work.token = item / groups;
    work.first_head = item % groups * kTileHeads;
    work.heads = min(kTileHeads, p.heads - work.first_head);
    work.rows = rows.is_dense() ? -1 : rows.count;
    work.window = rows.window;
    work.parity = n & 1;
    if (thread >= kProducers - 32) {
      if (n >= 2) barrier_wait(shared_address(&shared.token_empty[n % 2]), (n / 2 - 1) & 1);
      const int pair = thread % 32;
      if (pair == 0) shared.work[n % 2] = work;
      if (work.rows > 0 && p.output_rope.inverse_frequency != nullptr) {
        shared.rotation[n % 2][pair] = rotation_of(p.output_rope, rows.place.position, pair);
      }
      __syncwarp();
      if (pair == 0) barrier_arrive(shared_address(&shared.token_full[n % 2]));
    }
    named_sync(kProducersBarrier, kProducers);
    if (work.rows > 0) {
      const KvSplit<1, true> split(work, 0);
      RowProducer<1, true>(p, rows, split, place, shared).run([&](int begin, int end) {
        const int next = item + static_cast<int>(gridDim.x);
        if (thread == 0 && next < last) copy_queries(queries, query_row(p, groups, next), shared, begin, end);
      });
      for (int slot = 0; slot < 2; ++slot) work.filled[slot] += split.fills(slot);
    }
  }
}

// Whether all tokens of this block are the dense kernel's; needs no more than the step's positions.
template <int kBlocks, bool kTurns>
__device__ inline bool all_dense(const AttendParams& p, const WarpgroupPass& pass, int groups) {
  if constexpr (!kTurns) return token_rows(p, token_of<kBlocks>(pass, groups)).is_dense();
  bool all = true;
  const int last = (pass.first_token + pass.tokens) * groups;
  const int first = pass.first_token * groups + static_cast<int>(blockIdx.x);
  for (int item = first; all && item < last; item += static_cast<int>(gridDim.x)) {
    all = token_rows(p, item / groups).is_dense();
  }
  return all;
}

#endif

// `queries`: rows of a head's values, in boxes of 64 x 64. Tokens in turn: any grid of one dimension. Alone: tokens *
// groups of 64 heads. Several blocks: grid x = tokens * kBlocks in clusters of kBlocks, y = groups of group_heads
// heads, 64 at most. Tokens of the dense kernel are left to it.
template <int kBlocks, bool kTurns>
__global__ void __launch_bounds__(kWarpgroupThreads, 1)
    attend_warpgroup_kernel(const __grid_constant__ AttendParams p, const __grid_constant__ CUtensorMap queries,
                            WarpgroupPass pass) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte warpgroup_shared[];
  auto& shared = *reinterpret_cast<WarpgroupShared<kBlocks, kTurns>*>(warpgroup_shared);
  const bool consumes = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0) < kConsumers / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.full[i]), kProducers / 32 + kProducers);
      barrier_init(shared_address(&shared.empty[i]), kConsumers / 32);
      // The last block's rotated values are copied: threads arrive once more, after their copies, as at `full`.
      const bool copied = kBlocks == 1 ? i == 1 : static_cast<int>(blockIdx.x) % kBlocks == kBlocks - 1;
      const int copies = copied ? kProducers : 0;
      barrier_init(shared_address(&shared.piece_full[i]), kProducers / 32 + copies);
      barrier_init(shared_address(&shared.piece_empty[i]), kConsumers / 32);
      barrier_init(shared_address(&shared.token_full[i]), 1);
      barrier_init(shared_address(&shared.token_empty[i]), kConsumers / 32);
    }
    barrier_init(shared_address(&shared.q_full), 1);
    barrier_init(shared_address(&shared.max_ready), 1);
    barrier_init(shared_address(&shared.weights_ready), kBlocks * kConsumers / 32);
    for (std::uint64_t& barrier : shared.weights_here) barrier_init(shared_address(&barrier), 1);
    barrier_init_fence();
    barrier_arrive_expect(shared_address(&shared.max_ready), sizeof(shared.split_max));
  }
  allow_dependents();
  const int groups = (p.heads + kTileHeads - 1) / kTileHeads;
  if (pass.dense && all_dense<kBlocks, kTurns>(p, pass, groups)) {
    wait_for_predecessors();
    return;
  }
  if constexpr (!kTurns) {
    attend_token<kBlocks, kTurns>(p, queries, pass, consumes, shared);
  } else {
    wait_for_predecessors();
    const int first = pass.first_token * groups + static_cast<int>(blockIdx.x);
    const int last = (pass.first_token + pass.tokens) * groups;
    __syncthreads();
    if (consumes) {
      take_registers<consumer_registers<1>()>();
      consume_tokens(p, queries, groups, first, last, shared);
    } else {
      give_registers<producer_registers<1>()>();
      produce_tokens(p, queries, groups, first, last, shared);
    }
  }
#endif
}

}  // namespace dsv4rt::cuda
