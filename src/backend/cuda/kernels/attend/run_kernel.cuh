// Attention of runs of tokens on Hopper: run_plan.cuh says how.
#pragma once

#include <cstdint>
#include <cuda.h>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/encoded_outputs.cuh"
#include "backend/cuda/kernels/attend/run_heads.cuh"
#include "backend/cuda/kernels/attend/run_plan.cuh"
#include "backend/cuda/kernels/attend/run_rows.cuh"
#include "backend/cuda/kernels/attend/token_rows.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Zeros for the outputs of a token without rows.
template <bool kEncodes>
__device__ inline void write_no_rows(const AttendParams& p, std::int64_t token, int first_head) {
  if constexpr (kEncodes) {
    write_encoded_zeros(*p.encoded, p.heads, token, first_head, kRunHeads, 0, kHeadBlocks,
                        static_cast<int>(threadIdx.x), kRunConsumers);
    return;
  }
  auto* to = reinterpret_cast<uint4*>(p.o + (token * p.heads + first_head) * kHeadDim);
  for (int i = static_cast<int>(threadIdx.x); i < kRunHeads * kHeadDim / kUnitValues; i += kRunConsumers) {
    to[i] = uint4{};
  }
}

template <bool kCompresses, bool kNorms, bool kEncodes>
__device__ inline void consume_runs(const AttendParams& p, const RunBlock& block, RunShared<kCompresses>& shared) {
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  const auto most_compressed = static_cast<std::int32_t>(most_compressed_rows(p));
  const auto compressed_rows = [&](std::int32_t position) {
    return kCompresses ? min((position + 1) / p.ratio, most_compressed) : 0;
  };
  RunDecoder<kCompresses> decoder(p, shared.rows);
  RunConsumer<kCompresses, kNorms, kEncodes> consumer(p, shared, group, block.first_head);
  std::int32_t alone_until = block.begin;  // tokens before it are runs of their own
#pragma unroll 1
  for (std::int32_t first = block.begin; first < block.end;) {
    // The warpgroup's first token from `first` on.
    const std::int32_t own = first + (group + kRunGroups - (first - block.begin) % kRunGroups) % kRunGroups;
    const TokenPosition place = token_position(p.step, first);
    if (!place.real) {
      write_no_rows<kEncodes>(p, first, block.first_head);
      if (own == first) consumer.skip();
      ++first;
      continue;
    }
    // The sequence's last token by its place in the sequence: a part of a step has rows of its own (rows_of_step).
    const std::int32_t left = place.end_token - place.token_of(place.position);
    const std::int32_t most_end = first < alone_until ? first + 1 : min(block.end, first + left);
    RunRows rows{.place = place,
                 .first_position = max(0, place.position - kRunWindow + 1),
                 .compressed = compressed_rows(place.position + most_end - 1 - first)};
    const std::int32_t end = min(most_end, first + RunShape<kCompresses>::kRows - rows.window_row() - kRunWindow + 1);
    rows.window = place.position + end - first - rows.first_position;
    rows.compressed = compressed_rows(place.position + end - 1 - first);
    named_sync(kRunBarrier, kRunConsumers);  // the last run's rows are done with
    const bool infinite = decoder.decode(rows);
    fence_async_proxy();
    if (named_sync_any(kRunBarrier, kRunConsumers, infinite) && end > first + 1) {
      alone_until = end;
      continue;
    }
#pragma unroll 1
    for (std::int32_t token = own; token < end; token += kRunGroups) {
      const std::int32_t position = place.position + token - first;
      const std::int32_t window = min(kRunWindow, position + 1);
      consumer.attend({.token = token,
                       .position = position,
                       .first_row = rows.window_row() + position - window + 1 - rows.first_position,
                       .window = window,
                       .compressed = compressed_rows(position)});
    }
    first = end;
  }
}

// Queries of all tokens, 64 values at a time, by one thread. A token's come twice where they get their norm here; the
// second time they are in the level-2 cache.
template <bool kCompresses, bool kNorms>
__device__ inline void copy_run_queries(const AttendParams& p, const CUtensorMap& queries, const RunBlock& block,
                                        RunShared<kCompresses>& shared) {
  int slot = 0;
  int round = 0;
#pragma unroll 1
  for (std::int32_t token = block.begin; token < block.end; ++token) {
#pragma unroll 1
    for (int i = 0; i < kRunTokenAtoms<kNorms>; ++i) {
      const int atom = i % kAtoms;
      const std::uint32_t full = shared_address(&shared.full[slot]);
      if (round > 0) barrier_wait(shared_address(&shared.empty[slot]), (round - 1) & 1);
      barrier_arrive_expect(full, kAtomBytes);
      copy_box(shared_address(shared.queries[slot]), &queries, atom * kAtomValues, token * p.heads + block.first_head,
               full);
      if (++slot == RunShape<kCompresses>::kSlots) {
        slot = 0;
        ++round;
      }
    }
  }
}

#endif

// `queries`: rows of a head's values, in boxes of 64 x 64. Grid: blocks of pass.block_tokens tokens * groups of heads.
// Precondition: the window is kRunWindow, heads are a multiple of kRunHeads, rows are not selected, no token has more
// than kRunCompressedRows of them, and one has compressed rows only where its window is full. kNorms: p.query_eps has a
// value; kEncodes: p.encoded has.
template <bool kCompresses, bool kNorms, bool kEncodes>
__global__ void __launch_bounds__(kRunThreads, 1)
    attend_run_kernel(const __grid_constant__ AttendParams p, const __grid_constant__ CUtensorMap queries,
                      RunPass pass) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte run_shared[];
  auto& shared = *reinterpret_cast<RunShared<kCompresses>*>(run_shared);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    for (std::uint64_t& turn : shared.turn) barrier_init(shared_address(&turn), 4);
    for (int i = 0; i < RunShape<kCompresses>::kSlots; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), 4);  // warps of a warpgroup
    }
    barrier_init_fence();
  }
  __syncthreads();
  allow_dependents();
  wait_for_predecessors();
  const RunBlock block(pass);
  if (warp < kRunConsumers / 32) {
    take_registers<kRunConsumerRegisters>();
    consume_runs<kCompresses, kNorms, kEncodes>(p, block, shared);
  } else {
    give_registers<kRunProducerRegisters>();
    if (warp == kRunConsumers / 32 && elected_lane()) copy_run_queries<kCompresses, kNorms>(p, queries, block, shared);
  }
#endif
}

}  // namespace dsv4rt::cuda
