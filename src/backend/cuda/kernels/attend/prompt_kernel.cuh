// Attention of 64 query heads of a token whose rows lie decoded, by a block on Hopper: prompt_plan.cuh says how.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_items.cuh"
#include "backend/cuda/kernels/attend/decoded_rows.cuh"
#include "backend/cuda/kernels/attend/prompt_plan.cuh"
#include "backend/cuda/kernels/attend/prompt_producer.cuh"
#include "backend/cuda/kernels/attend/prompt_scorer.cuh"
#include "backend/cuda/kernels/attend/prompt_summer.cuh"
#include "backend/cuda/kernels/attend/token_rows.cuh"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline bool has_prompt_item(const BlockPass& pass, int i) {
  return pass.item_of(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), i) < pass.items();
}
// Whether this block has anything to do.
__device__ inline bool any_prompt_item(const AttendParams& p, const BlockPass& pass) {
  if (pass.takes_all()) return true;
  for (int i = 0; has_prompt_item(pass, i); ++i) {
    const std::int32_t item = pass.item_of(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), i);
    if (pass.takes(token_rows(p, pass.token(item)))) return true;
  }
  return false;
}

// The block's items from the `begin`-th on; `n` counts those of both rounds.
template <bool kShifted>
__device__ inline void score_items(const AttendParams& p, const CUtensorMap& queries, const BlockPass& pass, int begin,
                                   int& n, PromptShared& shared) {
  PromptScorer<kShifted> scorer(p, queries, pass, shared);
  if (threadIdx.x == 0) {
    scorer.copy_queries(begin, 0);
    scorer.copy_queries(begin, 1);
  }
#pragma unroll 1
  for (int i = begin; has_prompt_item(pass, i); ++i, ++n) scorer.score(i, n);
}
template <bool kShifted>
__device__ inline void sum_items(const AttendParams& p, const CUtensorMap& outputs, const BlockPass& pass, int half,
                                 int begin, int& n, PromptShared& shared) {
  PromptSummer<kShifted> summer(p, outputs, half, shared);
#pragma unroll 1
  for (int i = begin; has_prompt_item(pass, i); ++i, ++n) summer.sum(n);
}

#endif

// Grid: any number of blocks. `queries`, `outputs`, `boxes`: of encode_query_map(), encode_output_map() and
// encode_decoded_rows_map().
__global__ void __launch_bounds__(kPromptThreads, 1)
    attend_prompt_kernel(const __grid_constant__ AttendParams p, const __grid_constant__ CUtensorMap queries,
                         const __grid_constant__ CUtensorMap outputs, const __grid_constant__ CUtensorMap boxes,
                         const __grid_constant__ BlockPass pass, const __grid_constant__ DecodedRows decoded) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte prompt_shared[];
  auto& shared = *reinterpret_cast<PromptShared*>(prompt_shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      for (int half = 0; half < kHalves; ++half) {
        barrier_init(shared_address(&shared.full[i][half]), kRoleThreads);
        barrier_init(shared_address(&shared.empty[i][half]), kRoleThreads / 32);
      }
      barrier_init(shared_address(&shared.weights_full[i]), kRoleThreads);
      barrier_init(shared_address(&shared.factor_full[i]), kRoleThreads);
      barrier_init(shared_address(&shared.item_full[i]), 32);
      barrier_init(shared_address(&shared.item_empty[i]), 3 * kRoleThreads);
    }
    for (auto& half : shared.q_full) barrier_init(shared_address(&half), 1);
    barrier_init(shared_address(&shared.first_round), kPromptThreads);
    barrier_init_fence();
    shared.first_shifted = kNoItem;
  }
  allow_dependents();
  const bool any = any_prompt_item(p, pass);  // the step's positions alone are read
  __syncthreads();
  wait_for_predecessors();
  if (!any) return;
  const int role = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kRoleThreads, 0);
  int n = 0;
  if (role == 0) {
    take_registers<kScorerRegisters>();
    score_items<false>(p, queries, pass, 0, n, shared);
    const int again = end_first_round(shared);
    if (again != kNoItem) score_items<true>(p, queries, pass, again, n, shared);
  } else if (role < 3) {
    take_registers<kSummerRegisters>();
    sum_items<false>(p, outputs, pass, role - 1, 0, n, shared);
    const int again = end_first_round(shared);
    if (again != kNoItem) {
      wait_stores_written();  // the second round's outputs come after the first one's
      sum_items<true>(p, outputs, pass, role - 1, again, n, shared);
    }
  } else {
    give_registers<kPromptProducerRegisters>();
    PromptProducer producer(p, pass, decoded, boxes, shared);
    for (; has_prompt_item(pass, n); ++n) producer.produce(n, n, 1);
    const int again = end_first_round(shared);
    if (again != kNoItem) {
      for (int i = again; has_prompt_item(pass, i); ++i, ++n) producer.produce(i, n, 2);
    }
  }
#endif
}

}  // namespace dsv4rt::cuda
