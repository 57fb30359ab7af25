// Attention of 64 query heads of a token, or of a KV split of it, by a block on Hopper: block_plan.cuh, even_pass.cuh
// and dense_plan.cuh say how.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_heads.cuh"
#include "backend/cuda/kernels/attend/block_items.cuh"
#include "backend/cuda/kernels/attend/block_rows.cuh"
#include "backend/cuda/kernels/attend/decoded_producer.cuh"
#include "backend/cuda/kernels/attend/dense_plan.cuh"
#include "backend/cuda/kernels/attend/even_plan.h"
#include "backend/cuda/kernels/attend/place_rows.cuh"
#include "backend/cuda/kernels/attend/query_copy.cuh"
#include "backend/cuda/kernels/attend/query_norm.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Arrivals that fill a slot: threads' copies, and of warps that decode their stores.
template <class Pass>
inline constexpr int kFillArrivals = kBlockProducers + (Pass::kDecoded ? 0 : kBlockProducers / 32);

// Places of the window's rows, by the producers.
template <class Pass>
__device__ inline void place_window_rows(const AttendParams& p, const Pass& pass, const TokenPosition& place,
                                         int thread, RowSlot* places) {
  const int window = window_rows(p, place);
  if (thread >= window) return;
  const std::int32_t position = place.position - window + 1 + thread;
  if constexpr (Pass::kDecoded) {
    places[thread] = pass.decoded.window_row(place, position);
  } else {
    places[thread] = window_slot(p, place, position);
  }
}

// Starts to bring those of them that the step does not write to the level-2 cache.
__device__ inline void prefetch_window_rows(const AttendParams& p, const TokenPosition& place, int thread,
                                            const RowSlot* places) {
  if (thread >= window_rows(p, place) || places[thread] >= kStagedRow) return;
  const RowSource source = window_source(p, place.slot, places[thread]);
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter) prefetch_quarter_row(source, quarter);
}

// place_compressed_rows() and, of rows that are not selected, the wait for the kernels in front and start_queries().
template <class StartQueries>
__device__ inline TokenRows place_block_rows(const AttendParams& p, std::int64_t token, const TokenPosition& position,
                                             int thread, RowSlot* places, const StartQueries& start_queries) {
  const bool selected = p.topk_indices != nullptr;
  const TokenRows rows = place_compressed_rows<kBlockProducers>(
      p, PackedRowFinder(p, position.slot), token, selected, position, thread, places + kMappedWindow, start_queries);
  if (!selected) {
    wait_for_predecessors();
    start_queries();
  }
  return rows;
}

// Norms and turns the queries of the item at `at` where they lie, by the consumers.
__device__ inline void norm_item_queries(const AttendParams& p, float eps, int at, BlockShared& shared) {
  const bool turns = p.output_rope.inverse_frequency != nullptr;
  norm_eight_heads(shared_address(shared.q), static_cast<int>(threadIdx.x) / 32 * 8, eps,
                   turns ? shared.rotation[at] : nullptr);
  fence_async_proxy();
  named_sync(kQueriesBarrier, kBlockConsumers);
}

// The block's `i`-th item of a pass, by whole warps. Read anew: a register, or a spilled one, would hold it through the
// tiles.
template <class Pass>
__device__ inline int block_item(const Pass& pass, const BlockShared& shared, int i) {
  int block;
  int blocks;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
  if constexpr (Pass::kHands) {
    EvenShares::Share share;
    asm volatile("ld.shared.v4.s32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(share.head), "=r"(share.first_whole), "=r"(share.wholes), "=r"(share.tail)
                 : "r"(shared_address(&shared.share)));
    // Known to be uniform: what is done with an item is otherwise code for lanes that may part.
    return __shfl_sync(0xffffffffu, pass.item_of(share, block, i), 0);
  } else {
    return pass.item_of(block, blocks, i);
  }
}

// Whether another block goes on with the item at `at`, and sees what its sums tell. By whole warps.
template <class Pass>
__device__ inline bool hands_on(const BlockShared& shared, int at) {
  if constexpr (Pass::kHands) return uniform(shared.hands_on[at]);
  return false;
}

// The first of an item's queries, among all of the step's.
template <class Pass>
__device__ inline std::int32_t first_query(const AttendParams& p, const Pass& pass, int item) {
  return pass.token(item) * p.heads + pass.first_head(item);
}

// The block's items from the `begin`-th on, the first round of tokens maybe behind a rehearsal (kRehearsal): its first
// queries are the producers' to copy. `n`: items that the block has had before, in either of its rounds,
// for the phases of barriers. kShifted: heads may have a shift.
template <bool kShifted, class Pass>
__device__ inline void consume_items(const AttendParams& p, const CUtensorMap& queries, const CUtensorMap& outputs,
                                     const Pass& pass, int begin, int& n, BlockShared& shared) {
  const auto copy = [&](int i) {
    if (!Pass::kHands && threadIdx.x != 0) return;  // where tokens are handed on, whole warps look items up
    const int item = block_item(pass, shared, i);
    if (threadIdx.x != 0 || item >= pass.items()) return;
    if (pass.has_queries_of_last(item)) {
      barrier_arrive(shared_address(&shared.q_full));
    } else {
      copy_queries(queries, first_query(p, pass, item), shared);
    }
  };
  constexpr bool kRehearses = !kShifted && !Pass::kSplits;
  const bool with_rehearsal = kRehearses && p.topk_indices != nullptr;
  if constexpr (kShifted) {
    copy(begin);
  } else if constexpr (Pass::kSplits) {  // the first round begins with queries that no item before has had
    const int item = block_item(pass, shared, begin);
    std::int32_t row = item < pass.items() ? first_query(p, pass, item) : -1;
    have_ready(row);
    wait_for_predecessors();
    if (threadIdx.x == 0 && row >= 0) copy_queries(queries, row, shared);
  } else if (!with_rehearsal) {
    wait_for_predecessors();
  }
#pragma unroll 1
  for (int i = with_rehearsal ? -1 : begin; i < 0 || block_item(pass, shared, i) < pass.items(); ++i) {
    const bool rehearses = kRehearses && i < 0;
    const int at = rehearses ? kRehearsal : n % 2;
    if (!rehearses) {
      barrier_wait(shared_address(&shared.item_full[at]), n / 2 & 1);
      barrier_wait(shared_address(&shared.q_full), n & 1);
    }
    const auto next = [&] {
      if (!rehearses) copy(i + 1);
    };
    if (shared.item[at].rows > 0) {
      if (p.query_eps && !rehearses && !pass.has_queries_of_last(block_item(pass, shared, i))) {
        norm_item_queries(p, *p.query_eps, at, shared);
      }
      BlockConsumer<Pass> consumer(p, at, shared);
      float greatest[2];
      if constexpr (kShifted) consumer.find_greatest(greatest);
      const bool uncertain = consumer.template sum<kShifted>(greatest, pass, next);
      const bool hands = !rehearses && hands_on<Pass>(shared, at);  // read by all lanes: `uncertain` is a lane's
      if (!kShifted && uncertain && !rehearses && !hands) atomicMin(&shared.first_shifted, pass.first_again(i));
      if constexpr (Pass::kSplits) {
        const int item = block_item(pass, shared, i);
        float4* const sums = pass.sums + pass.place(item) * kSplitQuads;
        float2* const states = pass.states + pass.place(item) * kTileHeads;
        if constexpr (Pass::kRuns) {
          consumer.template write_run_sums<kShifted>(pass.step(item), sums, states);
        } else {
          consumer.template write_sums<kShifted>(sums, states);
        }
      } else if (!rehearses) {
        if constexpr (Pass::kHands) {
          if (hands) {
            consumer.hand_on(pass);
          } else {
            consumer.write(outputs);
          }
        } else {
          consumer.write(outputs);
        }
      }
    } else {
      if (shared.item[at].rows == 0)
        write_item_zeros<Pass::kEncodes>(p, shared.item[at], static_cast<int>(threadIdx.x));
      meet_consumers(shared, 0);
      next();
      meet_consumers(shared, 1);
    }
    if (rehearses) {
      wait_for_predecessors();
      continue;
    }
    // Every thread for itself, as it has read the item: racecheck does not see a warp behind one of its lanes.
    barrier_arrive(shared_address(&shared.item_empty[at]));
    ++n;
  }
}
template <bool kShifted, class Pass>
__device__ inline void produce_items(const AttendParams& p, const CUtensorMap& queries, const Pass& pass, int begin,
                                     int& n, int (&filled)[2], BlockShared& shared) {
#pragma unroll 1
  for (int i = begin; block_item(pass, shared, i) < pass.items(); ++i, ++n) {
    const int item = block_item(pass, shared, i);
    int thread = 0;  // read for every item: what follows from it would otherwise be kept in registers, or spilled
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    thread -= kBlockConsumers;
    // The places two items before are not looked up any more: their rows are in the slots.
    RowSlot* places = shared.place[n % 2];
    const TokenPosition position = token_position(p.step, pass.token(item));
    place_window_rows(p, pass, position, thread, places);
    TokenRows rows;
    if constexpr (Pass::kSplits) {
      rows = token_rows(p, pass.token(item), [&] { return position; });
    } else {
      if (n == 0) prefetch_window_rows(p, position, thread, places);
      // The first item's queries are asked for here: consumers may still rehearse.
      std::int32_t row = n == 0 && thread == 0 ? first_query(p, pass, item) : -1;
      have_ready(row);
      rows = place_block_rows(p, pass.token(item), position, thread, places, [&] {
        if (row >= 0) copy_queries(queries, row, shared);
      });
    }
    const ItemRows own = pass.rows(rows, item, kShifted);
    if (Pass::kSplits && n == 0) {
      if (!Pass::kDecoded && own.begin == 0 && own.count > 0) prefetch_window_rows(p, position, thread, places);
      wait_for_predecessors();
    }
    if (thread >= kBlockProducers - 32) {
      if (n >= 2) barrier_wait(shared_address(&shared.item_empty[n % 2]), (n / 2 - 1) & 1);
      const int pair = thread % 32;
      if (pair == 0) {
        shared.item[n % 2] = {.token = pass.token(item),
                              .first_head = pass.first_head(item),
                              .rows = own.count,
                              .reference_rows = Pass::kSplits ? 2 * kTileRows : rows.window,
                              .filled = {filled[0], filled[1]}};
        if constexpr (Pass::kHands) {
          shared.resumes[n % 2] = own.begin > 0;
          shared.hands_on[n % 2] = own.count > 0 && pass.part(item) == EvenShares::kHead;
        }
      }
      // Outputs of splits are turned where they are added.
      const bool turns = !Pass::kSplits || p.query_eps;
      if (turns && own.count > 0 && p.output_rope.inverse_frequency != nullptr) {
        shared.rotation[n % 2][pair] = rotation_of(p.output_rope, rows.place.position, pair);
      }
      barrier_arrive(shared_address(&shared.item_full[n % 2]));  // every lane for itself, as below
    }
    named_sync(kBlockProducersBarrier, kBlockProducers);
    if (own.count <= 0) continue;
    auto producer = [&] {
      if constexpr (Pass::kDecoded) {
        return DecodedProducer(pass.decoded, rows, own, places, shared);
      } else {
        return BlockProducer<Pass::kSplits, (Pass::kSplits || Pass::kHands)>(p, rows, own, places, shared);
      }
    }();
#pragma unroll 1
    for (int round = 0; round < (kShifted ? 2 : 1); ++round) producer.run(filled);
  }
}

// Whether this block has anything to do.
template <class Pass>
__device__ inline bool any_item(const AttendParams& p, const Pass& pass, const BlockShared& shared) {
  for (int i = 0; block_item(pass, shared, i) < pass.items(); ++i) {
    if (pass.takes(token_rows(p, pass.token(block_item(pass, shared, i))))) return true;
  }
  return false;
}

#endif

// Grid: any number of blocks; of EvenPass as many as divide the items. `queries`, `outputs`: encode_query_map()'s and
// encode_output_map()'s. Pass: BlockPass or EncodedBlockPass for tokens of up to kMaximumRows rows or selected ones,
// EvenPass for the same, DensePass, DenseRunsPass or Decoded<DenseRunsPass> for the others.
template <class Pass>
__global__ void __launch_bounds__(kBlockThreads, 1)
    attend_block_kernel(const __grid_constant__ AttendParams p, const __grid_constant__ CUtensorMap queries,
                        const __grid_constant__ CUtensorMap outputs, const __grid_constant__ Pass pass) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte block_shared[];
  auto& shared = *reinterpret_cast<BlockShared*>(block_shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.full[i]), kFillArrivals<Pass>);
      barrier_init(shared_address(&shared.empty[i]), kBlockConsumers / 32);
      barrier_init(shared_address(&shared.item_full[i]), 32);
      barrier_init(shared_address(&shared.item_empty[i]), kBlockConsumers);
    }
    barrier_init(shared_address(&shared.meeting), kBlockConsumers);
    barrier_init(shared_address(&shared.first_round), kBlockThreads);
    barrier_init(shared_address(&shared.q_full), 1);
    barrier_init_fence();
    shared.first_shifted = kNoItem;
    shared.item[kRehearsal] = {
        .token = 0, .first_head = 0, .rows = kRehearsedRows, .reference_rows = kRehearsedRows, .filled = {0, 0}};
  }
  allow_dependents();
  if constexpr (Pass::kHands) {
    if (threadIdx.x == 0) shared.share = pass.shares.share(static_cast<std::int32_t>(blockIdx.x));
  } else if (!pass.takes_all() && !any_item(p, pass, shared)) {
    wait_for_predecessors();
    return;
  }
  __syncthreads();
  int n = 0;
  if (__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0) < kBlockConsumers / 32) {
    take_registers<kBlockConsumerRegisters<Pass::kDecoded>>();
    consume_items<false>(p, queries, outputs, pass, 0, n, shared);
    const int again = end_first_round(shared);
    if (again != kNoItem) {
      wait_stores_written();  // the second round's outputs come after the first one's
      consume_items<true>(p, queries, outputs, pass, again, n, shared);
    }
  } else {
    give_registers<kBlockProducerRegisters<Pass::kDecoded>>();
    int filled[2] = {0, 0};
    produce_items<false>(p, queries, pass, 0, n, filled, shared);
    const int again = end_first_round(shared);
    if (again != kNoItem) produce_items<true>(p, queries, pass, again, n, filled, shared);
  }
#endif
}

}  // namespace dsv4rt::cuda
