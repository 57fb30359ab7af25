// Attention of 64 query heads of a token by a pair of blocks on Hopper: pair_plan.cuh says how.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/pair_consumers.cuh"
#include "backend/cuda/kernels/attend/pair_rows.cuh"
#include "backend/cuda/kernels/attend/place_rows.cuh"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Zeros for this block's half of the outputs of a token without rows.
__device__ inline void write_pair_zeros(const AttendParams& p, std::int64_t token, int first_head, int rank) {
  constexpr int kUnits = kHalfValues / kUnitValues;
  const int heads = min(kTileHeads, p.heads - first_head);
  if (p.encoded) {
    write_encoded_zeros(*p.encoded, p.heads, token, first_head, heads, rank * kHalfParts, (rank + 1) * kHalfParts,
                        static_cast<int>(threadIdx.x), kPairThreads);
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < heads * kUnits; i += kPairThreads) {
    bf16* head = p.o + (token * p.heads + first_head + i / kUnits) * kHeadDim;
    reinterpret_cast<uint4*>(head + rank * kHalfValues)[i % kUnits] = uint4{};
  }
}

// Starts the copy of this block's half of the queries, by one thread.
__device__ inline void copy_half_queries(const CUtensorMap& queries, int row, int rank, PairShared& shared) {
  const std::uint32_t full = shared_address(&shared.q_full);
  barrier_arrive_expect(full, sizeof(shared.q));
#pragma unroll 1
  for (int atom = 0; atom < kHalfAtoms; ++atom) {
    copy_box(shared_address(shared.q) + atom * kAtomBytes, &queries, rank * kHalfValues + atom * kAtomValues, row,
             full);
  }
}

// Waits for the factors of the plain pass, or of the shifted one. Whether there is a shifted pass.
__device__ inline bool wait_for_factors(PairShared& shared, int pass) {
  barrier_wait_cluster(shared_address(&shared.factors), pass > 0 ? 1 : 0);
  return pass == 0 && shared.factor[0][0].y != 0.0f;
}

template <int kRank>
__device__ inline void produce(const AttendParams& p, const TokenPosition& place, std::int32_t window,
                               PairShared& shared) {
  const int thread = static_cast<int>(threadIdx.x) - kPairScorers - kPairSummers;
  PairProducer<kRank> producer(p, place, window, thread, shared);
  int filled = 0;
#pragma unroll 1
  for (int pass = 0; pass < 3; ++pass) {
    producer.run(pass == 0, filled);
    if (pass == 0 && !wait_for_factors(shared, pass)) break;
  }
}

// Begins before the kernels in front have ended, as clusters do (warpgroup_kernel.cuh).
__device__ inline void attend_pair(const AttendParams& p, const CUtensorMap& queries, std::int64_t token,
                                   PairShared& shared) {
  const int rank = static_cast<int>(blockIdx.x) % 2;
  const int first_head = static_cast<int>(blockIdx.y) * kTileHeads;
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  cluster_arrive_relaxed();
  const auto start_queries = [&] {
    if (threadIdx.x == 0) copy_half_queries(queries, static_cast<int>(token) * p.heads + first_head, rank, shared);
  };
  const auto take_turn = [&] {
    wait_for_predecessors();
    start_queries();
  };
  const TokenPosition place = token_position(p.step, token);
  const std::int32_t window = window_rows(p, place);
  const bool selected = p.topk_indices != nullptr;
  place_window_rows(p, place, window, shared.place);
  __syncthreads();
  cluster_wait();
  if (!place.real) {
    take_turn();
    barrier_wait(shared_address(&shared.q_full), 0);
    write_pair_zeros(p, token, first_head, rank);
    return;
  }
  // Where compressed rows lie, by scorers and summers, and how many there are. Selected ones are known when the kernels
  // in front have ended.
  const auto place_compressed = [&] {
    const TokenRows rows = place_compressed_rows<kPairScorers + kPairSummers>(
        p, PackedRowFinder(p, place.slot), token, selected, place, static_cast<int>(threadIdx.x),
        shared.place + kMappedWindow, start_queries);
    if (threadIdx.x == 0) {
      shared.item = {
          .token = static_cast<std::int32_t>(token), .first_head = first_head, .rows = rows.count, .window = window};
    }
    // Every thread for itself: racecheck does not see a warp behind one of its lanes.
    barrier_arrive(shared_address(&shared.placed));
    barrier_wait(shared_address(&shared.placed), 0);
    return (rows.count + kTileRows - 1) / kTileRows;
  };
  if (warpgroup < 2) {
    give_registers<kPairScorerRegisters>();
    const int tiles = place_compressed();
    if (!selected) take_turn();
    barrier_wait(shared_address(&shared.q_full), 0);
    PairScorer scorer(p, rank, warpgroup, shared);
#pragma unroll 1
    for (int pass = 0; pass < 3; ++pass) {
      scorer.run(static_cast<PairPass>(pass), pass * tiles);
      if (pass == 0 && !wait_for_factors(shared, pass)) break;
      if (pass == 0 && threadIdx.x == 0) {
        barrier_arrive_expect(shared_address(&shared.factors), sizeof(shared.factor[0]));
      }
    }
    scorer.finish();
  } else if (warpgroup == 2) {
    take_registers<kPairSummerRegisters>();
    const int tiles = place_compressed();
    const int pair = static_cast<int>(threadIdx.x) - kPairScorers;
    if (rank == 1 && pair < kRotatedPairs && p.output_rope.inverse_frequency != nullptr) {
      shared.rotation[pair] = rotation_of(p.output_rope, place.position, pair);
    }
    named_sync(kPairSummersBarrier, kPairSummers);
    wait_for_predecessors();
    PairSummer summer(p, rank, shared);
    int pass = 0;
    bool again = false;
    do {
      summer.run(pass * tiles);
      again = wait_for_factors(shared, pass);
      pass += 2;
    } while (again);
    summer.write();
  } else {
    give_registers<kPairProducerRegisters>();
    if (rank == 0) {
      produce<0>(p, place, window, shared);
    } else {
      produce<1>(p, place, window, shared);
    }
  }
}

#endif

// `queries`: rows of a head's values, in boxes of 64 x 64. Grid: x = tokens * 2 in clusters of 2, y = groups of 64
// heads. `dense`: whether some of the tokens may be the dense kernel's, which are
// left to it.
__global__ void __launch_bounds__(kPairThreads, 1)
    attend_pair_kernel(const __grid_constant__ AttendParams p, const __grid_constant__ CUtensorMap queries,
                       bool dense) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte pair_shared[];
  auto& shared = *reinterpret_cast<PairShared*>(pair_shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPairSlots; ++i) {
      barrier_init(shared_address(&shared.full[i]), kPairProducers / 32);
      barrier_init(shared_address(&shared.empty[i]), 4);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.partial_full[i]), 1);
      barrier_init(shared_address(&shared.partial_free[i]), 4);
      barrier_init(shared_address(&shared.weights_full[i]), 1);
      barrier_init(shared_address(&shared.turn[i]), 4);
      barrier_init(shared_address(&shared.weights_free[i]), 8);
    }
    barrier_init(shared_address(&shared.placed), kPairScorers + kPairSummers);
    barrier_init(shared_address(&shared.q_full), 1);
    barrier_init(shared_address(&shared.factors), 1);
    barrier_init(shared_address(&shared.maxima), kPairScorers);
    barrier_init_fence();
    barrier_arrive_expect(shared_address(&shared.factors), sizeof(shared.factor[0]));
  }
  allow_dependents();
  const std::int64_t token = static_cast<int>(blockIdx.x) / 2;
  if (dense && token_rows(p, token).is_dense()) {
    wait_for_predecessors();
    return;
  }
  attend_pair(p, queries, token, shared);
#endif
}

}  // namespace dsv4rt::cuda
