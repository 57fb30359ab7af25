// Attention of 64 query heads of one token on Hopper: warpgroup_plan.cuh says how.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/place_rows.cuh"
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
  std::int32_t group_heads;  // heads of a cluster
  bool dense;                // whether some of the tokens may be the dense kernel's
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Zeros for this block's slice of the outputs of a token without rows.
template <int kBlocks>
__device__ inline void write_zeros(const AttendParams& p, std::int64_t token, int first_head, int heads, int rank) {
  constexpr int kUnits = KvSplit<kBlocks>::kSliceValues / kUnitValues;
  for (int i = static_cast<int>(threadIdx.x); i < heads * kUnits; i += kWarpgroupThreads) {
    bf16* head = p.o + (token * p.heads + first_head + i / kUnits) * kHeadDim;
    reinterpret_cast<uint4*>(head + rank * KvSplit<kBlocks>::kSliceValues)[i % kUnits] = uint4{};
  }
}

// One token, by a cluster. Begins before the kernels in front have ended: where rows lie that are
// not selected is known by then, and so are most of them (early_reads.cuh).
template <int kBlocks>
__device__ inline void attend_token(const AttendParams& p, const CUtensorMap& queries, const WarpgroupPass& pass,
                                    std::int64_t token, bool consumes, WarpgroupShared<kBlocks>& shared) {
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const int first_head = static_cast<int>(blockIdx.y) * pass.group_heads;
  const int heads = min(pass.group_heads, p.heads - first_head);
  cluster_arrive();
  const auto start_queries = [&] {
    if (threadIdx.x == 0) copy_queries(queries, static_cast<int>(token) * p.heads + first_head, shared);
  };
  const auto take_turn = [&] {
    wait_for_predecessors();
    start_queries();
  };
  const TokenPosition place = token_position(p.step, token);
  const bool selected = p.topk_indices != nullptr;
  place_window_rows(p, place, window_rows(p, place), shared.place);
  const TokenRows rows = place_compressed_rows<kWarpgroupThreads>(p, PackedRowFinder(p, place.slot), token, selected,
                                                                  place, static_cast<int>(threadIdx.x),
                                                                  shared.place + kMappedWindow, start_queries);
  if (threadIdx.x == 0) {
    shared.work = {.token = static_cast<std::int32_t>(token),
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
    if (rows.count == 0) write_zeros<kBlocks>(p, token, first_head, heads, rank);
    return;
  }
  if (consumes) {
    take_registers<kConsumerRegisters>();
    if (!selected) take_turn();
    HeadConsumer<kBlocks>(p, shared).run();
  } else {
    give_registers<kProducerRegisters>();
    const KvSplit<kBlocks> split(rows.count, rank);
    RowProducer<kBlocks>(p, rows, split, shared).run();
    if (threadIdx.x < kConsumers + kRotatedPairs) {
      const int pair = static_cast<int>(threadIdx.x) - kConsumers;
      if (p.output_rope.inverse_frequency != nullptr) {
        shared.rotation[pair] = rotation_of(p.output_rope, rows.place.position, pair);
      }
      named_arrive(kOutputBarrier, kConsumers + 32);
    }
  }
  // Nobody leaves while others read its weights.
  cluster_arrive();
  cluster_wait();
}

#endif

// `queries`: rows of a head's values, in boxes of 64 x 64. Grid: x = tokens * kBlocks in clusters of kBlocks, y =
// groups of group_heads heads, 64 at most. Tokens of the dense kernel are left to it.
template <int kBlocks>
__global__ void __launch_bounds__(kWarpgroupThreads, 1)
    attend_warpgroup_kernel(const __grid_constant__ AttendParams p, const __grid_constant__ CUtensorMap queries,
                            WarpgroupPass pass) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte warpgroup_shared[];
  auto& shared = *reinterpret_cast<WarpgroupShared<kBlocks>*>(warpgroup_shared);
  const bool consumes = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0) < kConsumers / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.full[i]), kProducers / 32 + kProducers);
      barrier_init(shared_address(&shared.empty[i]), kConsumers / 32);
      // The last block's rotated values are copied: threads arrive once more, after their copies, as at `full`.
      const int copies = static_cast<int>(blockIdx.x) % kBlocks == kBlocks - 1 ? kProducers : 0;
      barrier_init(shared_address(&shared.piece_full[i]), kProducers / 32 + copies);
      barrier_init(shared_address(&shared.piece_empty[i]), kConsumers / 32);
    }
    barrier_init(shared_address(&shared.q_full), 1);
    barrier_init(shared_address(&shared.max_ready), 1);
    barrier_init(shared_address(&shared.weights_ready), kBlocks * kConsumers / 32);
    for (std::uint64_t& barrier : shared.weights_here) barrier_init(shared_address(&barrier), 1);
    barrier_init_fence();
    barrier_arrive_expect(shared_address(&shared.max_ready), sizeof(shared.split_max));
  }
  allow_dependents();
  const std::int64_t token = static_cast<int>(blockIdx.x) / kBlocks;
  if (pass.dense && token_rows(p, token).is_dense()) {
    wait_for_predecessors();
    return;
  }
  attend_token<kBlocks>(p, queries, pass, token, consumes, shared);
#endif
}

}  // namespace dsv4rt::cuda
