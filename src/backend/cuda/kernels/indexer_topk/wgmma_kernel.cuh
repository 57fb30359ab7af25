// The kernel that scores on Hopper (score_tiles.cuh), and selects where each of its runs is a token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"
#include "backend/cuda/kernels/indexer_topk/params.h"
#include "backend/cuda/kernels/indexer_topk/row_selector.cuh"
#include "backend/cuda/kernels/indexer_topk/run_scorer.cuh"
#include "backend/cuda/kernels/indexer_topk/score_tiles.cuh"
#include "backend/cuda/kernels/indexer_topk/select_all.cuh"
#include "backend/cuda/kernels/indexer_topk/uneven_rows.cuh"

namespace dsv4rt::cuda {

// What a kernel makes of its runs of tokens.
enum class ScoreUse : std::uint8_t {
  kRuns,    // scores of several tokens each, or of more heads than a tile has
  kTokens,  // scores of a token each
  kSelect,  // scores of a token each, counted, and its selection by the block that scores the last of its rows
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Stores a lane's scores of whole tiles, of which four are read at once, and counts those of the token's `rows` by
// first digit.
class CountScores {
 public:
  __device__ CountScores(float* scores, std::int32_t rows, std::uint32_t* rows_of, std::int32_t row)
      : out_(scores + row), left_(rows - row), rows_of_(rows_of) {}
  __device__ void operator()(float score) const {
    *out_ = score;
    if (left_ > 0) atomicAdd(&rows_of_[first_digit(rank_of(score))], 1U);  // not past the token's last row
  }
  // Takes the place of the first row's, which is one of the token's.
  __device__ void again(float score) const {
    atomicSub(&rows_of_[first_digit(rank_of(*out_))], 1U);
    (*this)(score);
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

// Adds for the whole block, after its barrier; the value before.
__device__ inline std::uint32_t add_acquire_release(std::uint32_t* sum, std::uint32_t own) {
  std::uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;\n"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(sum)), "r"(own)
               : "memory");
  return before;
}

// The block has stored and counted `count` tiles of a token's run. Blocks add up what they have; the last of them
// selects, or another kernel does. No block waits for another.
__device__ inline void finish_token(const IndexerTopkParams& p, const ScoreBatch& batch, const ScoreRun& run,
                                    std::int32_t rows, std::int32_t count, ScoreControl& control,
                                    SelectorShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto sync = [] { sync_workers(); };
  sync();
  SelectState* state = nullptr;
  if (count < run.tiles || batch.selected_apart) {
    state = batch.state + run.first;
    auto* const counts = reinterpret_cast<uint4*>(shared.rows_of);
#pragma unroll 1
    for (int i = thread; i < kRankDigits / 4; i += kScoreWorkers) {
      const uint4 own = counts[i];
      if ((own.x | own.y | own.z | own.w) == 0) continue;
      counts[i] = uint4{};
      std::uint32_t* const sum = state->rows_of + 4 * i;
      if (own.x != 0) atomicAdd(sum, own.x);
      if (own.y != 0) atomicAdd(sum + 1, own.y);
      if (own.z != 0) atomicAdd(sum + 2, own.z);
      if (own.w != 0) atomicAdd(sum + 3, own.w);
    }
    if (batch.selected_apart) return;
    sync();
    if (thread == 0) {
      // What all threads have stored and added comes before, what the last block reads after.
      const std::uint32_t tiles = add_acquire_release(&state->tiles, static_cast<std::uint32_t>(count));
      control.last = tiles + static_cast<std::uint32_t>(count) == static_cast<std::uint32_t>(run.tiles);
      if (control.last) state->tiles = 0;
    }
    sync();
    if (!control.last) return;
  }
  RowSelector<kScoreWorkers, false, decltype(sync)>(shared, batch.scores + run.first * batch.stride, rows, sync)
      .run(state, p.top_k, p.topk_indices + (batch.first_token + run.first) * p.top_k);
}

// The tokens with nothing to choose, divided among the blocks, and all tokens' counts, by the calling one of `threads`
// threads of every block.
__device__ inline void select_short_tokens(const IndexerTopkParams& p, const ScoreBatch& batch, int thread,
                                           int threads) {
#pragma unroll 1
  for (auto index = static_cast<std::int32_t>(blockIdx.x); index < batch.tokens;
       index += static_cast<std::int32_t>(gridDim.x)) {
    const std::int64_t token = batch.first_token + index;
    const std::int32_t rows = visible_index_rows(p, token, batch.most_rows);
    if (thread == 0) p.topk_count[token] = min(rows, p.top_k);
    if (rows <= p.top_k) select_all(rows, p.top_k, thread, threads, p.topk_indices + token * p.top_k);
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
  const ScoreMemory memory(score_shared, shape, batch);
  ScoreControl& control = *memory.control;
  const int thread = static_cast<int>(threadIdx.x);
  init_score_barriers(control, shape);
  if (thread == 0) {
    barrier_init(shared_address(&control.part_found), kPartFinders);
    barrier_init_fence();
  }
  allow_dependents();
  // Positions and sequences are no kernel's work: there is no need to wait for them.
  const ScoreRuns runs(p, batch, kUse == ScoreUse::kSelect && !batch.selected_apart);
  SelectorShared& selector = *reinterpret_cast<SelectorShared*>(memory.control + 1);
  if constexpr (kUse == ScoreUse::kSelect) clear_selector(selector, kWgmmaScoreThreads);
  // The token that the block has if each token has blocks of its own. The workers bring its queries while the others
  // find out whether it is so.
  using TokenQueries = QueryLoader<KeyOperand<kFormat>>;
  const std::int32_t expected = kUse == ScoreUse::kRuns ? -1 : token_of_block(batch.tokens);
  typename TokenQueries::TokenParts queries{};
  const auto fetch_queries = [&](std::int32_t index) {
    const TokenQueries loader(p, 1);
    loader.fetch_token(loader.place_of_token(batch.first_token + index), queries);
  };
  if (expected >= 0) {
    __syncthreads();
    const std::uint32_t found = shared_address(&control.part_found);
    if (thread < kScoreWorkers) {
      auto place = TokenQueries(p, 1).place_of_token(batch.first_token + expected);
      have_ready(place.units);
      have_ready(place.weight);
      wait_for_predecessors();
      TokenQueries(p, 1).fetch_token(place, queries);
    } else {
      const int finder = thread - kScoreWorkers;
      if (!find_token_part(runs, batch.tokens, expected, finder == 0, control.part)) {
        find_score_part<kPartFinders>(
            runs, batch.tokens, finder, [] { sync_finders(); }, control.warp_total, control.part);
      }
      // Every thread for itself: racecheck does not see a warp behind one of its lanes.
      barrier_arrive(found);
    }
    barrier_wait(found, 0);
  } else {
    find_score_part<kWgmmaScoreThreads>(
        runs, batch.tokens, thread, [] { __syncthreads(); }, control.warp_total, control.part);
    __syncthreads();
  }
  // Known to be the same for a warp: addresses of copies are then, too, and stay in registers.
  const int warp = warp_uniform(thread / 32);
  if (warp >= kScoreWorkers / 32) {
    give_registers<32>();
    if (warp > kScoreWorkers / 32) {
      // They have nothing else to do, and the workers begin earlier.
      if constexpr (kUse == ScoreUse::kSelect) {
        wait_for_predecessors();
        select_short_tokens(p, batch, thread - kScoreWorkers - 32, kPartFinders - 32);
      }
      return;
    }
    const std::int32_t tiles = control.part.tiles;
    if (tiles == 0) return;
    TileFinder finder(p, runs, control.part);
    const TilePlace first = finder.find(min(thread % 32, tiles - 1));
    wait_for_predecessors();
    produce_tiles<kFormat>(p, finder, first, tiles, shape, shared_address(memory.ring), control);
    return;
  }
  wait_for_predecessors();
  const ScorePart part = control.part;
  if (part.tiles == 0) return;
  take_registers<160>();
  RingReader ring(memory, shape);
  if constexpr (kUse == ScoreUse::kRuns) {
    if constexpr (kFormat == IndexKeyFormat::kMxfp4) {
      score_integer_runs(p, batch, shape, runs, part, memory, ring);
    } else {
      score_runs<KeyOperand<kFormat>>(p, batch, shape, runs, part, memory, ring);
    }
  } else {
    RunTiles tiles = RunTiles{}.next(runs, part);
    if (tiles.run.first != expected) fetch_queries(tiles.run.first);
#pragma unroll 1
    while (true) {
      const int first = first_own_tile(tiles);
      const std::int64_t token = batch.first_token + tiles.run.first;
      std::int32_t rows = 0;  // looked up behind the queries, which come from as far
      float* const out = batch.scores + tiles.run.first * batch.stride;
      const auto report_from = [&](int row) {
        if constexpr (kUse == ScoreUse::kSelect) {
          return CountScores(out, rows, selector.rows_of, row);
        } else {
          return StoreScores(out, row);
        }
      };
      const auto place_queries = [&](auto operand) {
        return QueryLoader<decltype(operand)>(p, 1).place_token(queries, memory.queries, memory.weights);
      };
      const auto score = [&](auto operand) {
        rows = runs.rows(tiles.run.first);
        score_single<decltype(operand)>(memory, ring, first, tiles.end(), report_from, [&](int from) {
          UnevenRows(p, tiles.run.sequence).score_again(token, rows, from, tiles.end(), kScoreGroups, report_from);
        });
      };
      place_and_score<kFormat>(place_queries, any_worker, score, [&] {
        rows = runs.rows(tiles.run.first);
        score_plainly<KeyOperand<kFormat>>(shape, shared_address(memory.queries), memory.weights, ring, first,
                                           tiles.end(), 1, [&](int, int row) { return report_from(row); });
      });
      if constexpr (kUse == ScoreUse::kSelect) {
        finish_token(p, batch, tiles.run, rows, tiles.count, control, selector);
      }
      if (tiles.is_last(part)) break;
      tiles = tiles.next(runs, part);
      // Always anew: registers would otherwise keep what came before through the scores.
      fetch_queries(tiles.run.first);
      sync_workers();  // the queries before are read no more
    }
  }
#else
  __trap();  // chosen for this architecture alone
#endif
}

}  // namespace dsv4rt::cuda
