// The kernel that scores on Hopper (score_tiles.cuh), and selects where each of its runs is a token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"
#include "backend/cuda/kernels/indexer_topk/params.h"
#include "backend/cuda/kernels/indexer_topk/row_selector.cuh"
#include "backend/cuda/kernels/indexer_topk/score_tiles.cuh"
#include "backend/cuda/kernels/indexer_topk/select_all.cuh"

namespace dsv4rt::cuda {

// What a kernel makes of its runs of tokens.
enum class ScoreUse : std::uint8_t {
  kRuns,    // scores of several tokens each, or of more heads than a tile has
  kTokens,  // scores of a token each
  kSelect,  // scores of a token each, and its selection by the block that scores the last of its rows
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Stores a lane's scores and counts them by first digit; `rows` of the token.
class CountScores {
 public:
  __device__ CountScores(float* scores, std::int32_t rows, std::uint32_t* rows_of, std::int32_t row)
      : out_(scores + row), left_(rows - row), rows_of_(rows_of) {}
  __device__ void operator()(float score) const {
    if (left_ <= 0) return;  // past the token's last row
    *out_ = score;
    atomicAdd(&rows_of_[first_digit(rank_of(score))], 1U);
  }
  __device__ void advance() {
    out_ += kScoreGroups * kTileKeys;
    left_ -= kScoreGroups * kTileKeys;
  }

 private:
  float* out_;
  std::int32_t left_;
  std::uint32_t* rows_of_;
};

// The block has stored and counted `count` tiles of a token's run. Blocks add up what they have; the last of them
// selects. No block waits for another.
__device__ inline void finish_token(const IndexerTopkParams& p, const ScoreBatch& batch, const ScoreRun& run,
                                    std::int32_t rows, std::int32_t count, ScoreControl& control,
                                    SelectorShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto sync = [] { sync_workers(); };
  sync();
  SelectState* state = nullptr;
  if (count < run.tiles) {
    state = batch.state + run.first;
#pragma unroll 4
    for (int digit = thread; digit < kRankDigits; digit += kScoreWorkers) {
      const std::uint32_t own = shared.rows_of[digit];
      if (own == 0) continue;
      shared.rows_of[digit] = 0;
      atomicAdd(&state->rows_of[digit], own);
    }
    sync();
    if (thread == 0) {
      __threadfence();  // what all threads have stored and added comes first
      const auto tiles = static_cast<std::int32_t>(atomicAdd(&state->tiles, static_cast<std::uint32_t>(count))) + count;
      control.last = tiles == run.tiles;
      if (control.last) {
        state->tiles = 0;
        __threadfence();
      }
    }
    sync();
    if (!control.last) return;
  }
  RowSelector<kScoreWorkers, decltype(sync)>(shared, batch.scores + run.first * batch.stride, rows, sync)
      .run(state, p.top_k, p.topk_indices + (batch.first_token + run.first) * p.top_k);
}

// Before a barrier of the block.
__device__ inline void clear_selector(SelectorShared& shared) {
  static_assert(offsetof(SelectorShared, collected) % 16 == 0);
  auto* const units = reinterpret_cast<uint4*>(&shared);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(offsetof(SelectorShared, collected) / 16);
       i += kWgmmaScoreThreads) {
    units[i] = uint4{};
  }
}

// The tokens with nothing to choose, divided among the blocks, and all tokens' counts.
__device__ inline void select_short_tokens(const IndexerTopkParams& p, const ScoreBatch& batch) {
#pragma unroll 1
  for (auto index = static_cast<std::int32_t>(blockIdx.x); index < batch.tokens;
       index += static_cast<std::int32_t>(gridDim.x)) {
    const std::int64_t token = batch.first_token + index;
    const std::int32_t rows = visible_index_rows(p, token, batch.most_rows);
    if (threadIdx.x == 0) p.topk_count[token] = min(rows, p.top_k);
    if (rows <= p.top_k) select_all(rows, p.top_k, kWgmmaScoreThreads, p.topk_indices + token * p.top_k);
  }
}

#endif  // sm_90a

// Grid: any number of blocks, one on a multiprocessor. Cache blocks have a multiple of 64 rows. But for kRuns runs have
// one token and heads fit one tile; kSelect: the batch has `state`, SelectorShared follows ScoreControl.
template <IndexKeyFormat kFormat, ScoreUse kUse>
__global__ void __launch_bounds__(kWgmmaScoreThreads, 1)
    wgmma_score_kernel(const __grid_constant__ IndexerTopkParams p, const __grid_constant__ ScoreBatch batch,
                       const __grid_constant__ ScoreShape shape) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte score_shared[];
  ScoreMemory memory;
  memory.queries = score_shared;
  memory.ring = memory.queries + batch.group_tokens * shape.head_tiles * kQueryTileBytes;
  memory.weights = reinterpret_cast<float*>(memory.ring + shape.stages * shape.stage_bytes);
  memory.control = reinterpret_cast<ScoreControl*>(memory.weights + batch.group_tokens * shape.head_tiles * kTileHeads);
  ScoreControl& control = *memory.control;
  const int thread = static_cast<int>(threadIdx.x);
  init_score_barriers(control, shape);
  allow_dependents();
  // Positions and sequences are no kernel's work: there is no need to wait for them.
  const ScoreRuns runs(p, batch);
  SelectorShared& selector = *reinterpret_cast<SelectorShared*>(memory.control + 1);
  if constexpr (kUse == ScoreUse::kSelect) clear_selector(selector);
  find_score_part<kWgmmaScoreThreads>(runs, batch.tokens, control.warp_total, control.part);
  wait_for_predecessors();
  if constexpr (kUse == ScoreUse::kSelect) select_short_tokens(p, batch);
  __syncthreads();
  const ScorePart part = control.part;
  if (part.tiles == 0) return;
  if (thread >= kScoreWorkers) {
    give_registers<32>();
    if (thread < kScoreWorkers + 32) {
      produce_tiles<kFormat>(p, runs, part, shape, shared_address(memory.ring), control);
    }
    return;
  }
  take_registers<160>();
  RingReader ring(memory, shape);
  const QueryLoader<kFormat> loader(p, shape.head_tiles);
  std::int32_t number = 0;  // number in the block's part of the first tile in hand
  std::int32_t tile = part.first_tile;
  ScoreRun run = part.run;
  while (true) {
    if constexpr (kUse != ScoreUse::kRuns) {
      loader.template load<1>(batch.first_token + run.first, 1, memory.queries, memory.weights);
    } else {
      if (thread < run.end - run.first) control.rows[thread] = runs.rows(run.first + thread);
      loader.template load<4>(batch.first_token + run.first, run.end - run.first, memory.queries, memory.weights);
    }
    fence_async_proxy();
    sync_workers();
    const std::int32_t count = min(run.tiles - tile, part.tiles - number);
    // The warpgroup's first tile of these: its number is the warpgroup's modulo their count.
    const std::int32_t first = tile + (thread / 128 + kScoreGroups - number % kScoreGroups) % kScoreGroups;
    float* const out = batch.scores + run.first * batch.stride;
    if constexpr (kUse == ScoreUse::kSelect) {
      const std::int32_t rows = runs.rows(run.first);
      score_single<kFormat>(memory, ring, first, tile + count,
                            [&](int row) { return CountScores(out, rows, selector.rows_of, row); });
      finish_token(p, batch, run, rows, count, control, selector);
    } else if constexpr (kUse == ScoreUse::kTokens) {
      score_single<kFormat>(memory, ring, first, tile + count, [&](int row) { return StoreScores(out, row); });
    } else {
      score_run<kFormat>(shape, memory, ring, first, tile + count, run.end - run.first, out, batch.stride);
    }
    number += count;
    if (number >= part.tiles) break;
    run = runs.run_after(run);
    tile = 0;
    sync_workers();  // the queries are read no more
  }
#else
  __trap();  // chosen for this architecture alone
#endif
}

}  // namespace dsv4rt::cuda
