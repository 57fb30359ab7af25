// Scores and selection in one kernel, for tokens with few rows: a cluster of blocks takes a token, each block scores
// its share of the key tiles, as wgmma_score_kernel does, into the shared memory of the first one, which selects.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/indexer_topk/few_rows.cuh"
#include "backend/cuda/kernels/indexer_topk/score_tiles.cuh"
#include "backend/cuda/kernels/indexer_topk/select_all.cuh"
#include "backend/cuda/kernels/indexer_topk/uneven_rows.cuh"

namespace dsv4rt::cuda {

// Threads that select: some of the scores' workers. In builds for racecheck all threads do, and take part in every
// barrier: it stalls at a barrier of a cluster when warps have ended before, and reports hazards across a barrier of
// the block when some of its threads have met at others before.
inline constexpr bool kAllSelect = kFixedRegisters;
inline constexpr int kFusedTopKThreads = kAllSelect ? kWgmmaScoreThreads : kScoreWorkers;

// What lies in shared memory beside the queries, the ring and the weights.
struct FusedControl {
  ScoreControl score;
  DigitCounts counts;
  alignas(16) float scores[kMostFewRows];  // the token's, in the first block of its cluster
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Stores a lane's scores in the first block of the cluster.
class SendScores {
 public:
  __device__ SendScores(float* scores, int row) : out_(block_address(shared_address(scores + row), 0)) {}
  __device__ void operator()(float score) const {
    asm volatile("st.shared::cluster.f32 [%0], %1;\n" ::"r"(out_), "f"(score) : "memory");
  }
  __device__ void again(float score) const { (*this)(score); }  // takes the place of the first row's
  __device__ void advance() { out_ += kScoreGroups * kTileKeys * std::uint32_t{sizeof(float)}; }

 private:
  std::uint32_t out_;
};

// Between the threads that score.
__device__ inline void sync_scores() {
  if constexpr (kAllSelect) {
    __syncthreads();
  } else {
    sync_workers();
  }
}
// The same, and whether it is true of any of them.
__device__ inline bool sync_scores_any(bool own) {
  if constexpr (kAllSelect) {
    return __syncthreads_or(own ? 1 : 0) != 0;
  } else {
    return any_worker(own);
  }
}
#endif

// Grid: a cluster for every token of the batch, none of which has more than kMostFewRows rows; one token a run, heads
// fit one tile.
template <IndexKeyFormat kFormat>
__global__ void __launch_bounds__(kWgmmaScoreThreads, 1)
    fused_select_kernel(const __grid_constant__ IndexerTopkParams p, const __grid_constant__ ScoreBatch batch,
                        const __grid_constant__ ScoreShape shape) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte fused_shared[];
  const ScoreMemory memory(fused_shared, shape, batch);
  FusedControl& control = *reinterpret_cast<FusedControl*>(memory.control);
  const int thread = static_cast<int>(threadIdx.x);
  init_score_barriers(control.score, shape);
  clear_counts(control.counts, kWgmmaScoreThreads);
  allow_dependents();
  cluster_arrive_relaxed();  // all blocks have begun, or there is nowhere to send scores
  const auto blocks = static_cast<std::int32_t>(cluster_blocks());
  const auto rank = static_cast<std::int32_t>(cluster_rank());
  const auto index = static_cast<std::int32_t>(blockIdx.x) / blocks;
  const std::int64_t token = batch.first_token + index;
  const std::int32_t rows = visible_index_rows(p, token, batch.most_rows);
  const std::int32_t tiles = rows <= p.top_k ? 0 : (rows + kTileKeys - 1) / kTileKeys;
  const std::int32_t share = (tiles + blocks - 1) / blocks;
  const std::int32_t first = min(rank * share, tiles);
  const std::int32_t end = min(first + share, tiles);
  const ScoreRuns runs(p, batch, false);
  const ScoreRun run{
      .first = index, .end = index + 1, .tiles = tiles, .sequence = tiles > 0 ? p.step.token_sequence[token] : 0};
  TileFinder finder(p, runs, {.tiles = end - first, .first_tile = first, .run = run});
  TilePlace place{};
  if (thread >= kScoreWorkers && end > first) place = finder.find(min(thread % 32, end - first - 1));
  const QueryLoader<KeyOperand<kFormat>> loader(p, 1);
  auto query_place = loader.place_of_token(token);
  have_ready(query_place.units);
  have_ready(query_place.weight);
  wait_for_predecessors();
  typename QueryLoader<KeyOperand<kFormat>>::TokenParts queries{};
  if (thread < kScoreWorkers && tiles > 0) loader.fetch_token(query_place, queries);
  cluster_wait();
  std::int32_t* const chosen = p.topk_indices + token * p.top_k;
  if (rank == 0 && thread == 0) p.topk_count[token] = min(rows, p.top_k);
  if (tiles == 0) {
    select_all(rows, p.top_k, thread, kWgmmaScoreThreads, chosen);
    return;
  }
  __syncthreads();
  if (thread >= kScoreWorkers) {
    give_registers<32>();
    if constexpr (kAllSelect) {
      // The barriers of place_and_score().
      if (sync_scores_any(false)) sync_scores_any(false);
    }
    if (thread < kScoreWorkers + 32) {
      produce_tiles<kFormat>(p, finder, place, end - first, shape, shared_address(memory.ring), control.score);
    }
    if constexpr (!kAllSelect) return;
  } else {
    take_registers<160>();
    RingReader ring(memory, shape);
    const auto place_queries = [&](auto operand) {
      return QueryLoader<decltype(operand)>(p, 1).place_token(queries, memory.queries, memory.weights);
    };
    const auto report_from = [&](int row) { return SendScores(control.scores, row); };
    const auto score = [&](auto operand) {
      score_single<decltype(operand)>(memory, ring, first + thread / 128, end, report_from, [&](int from) {
        UnevenRows(p, run.sequence).score_again(token, rows, from, end, kScoreGroups, report_from);
      });
    };
    place_and_score<kFormat>(place_queries, sync_scores_any, score, [&] {
      score_plainly<KeyOperand<kFormat>>(shape, shared_address(memory.queries), memory.weights, ring,
                                         first + thread / 128, end, 1, [&](int, int row) { return report_from(row); });
    });
  }
  cluster_arrive();
  cluster_wait();
  if (rank != 0) return;
  const auto sync = [] { sync_scores(); };
  FewRowSelector<kFusedTopKThreads, decltype(sync)>(control.counts, sync).run(control.scores, rows, p.top_k, chosen);
#else
  __trap();  // chosen for this architecture alone
#endif
}

}  // namespace dsv4rt::cuda
