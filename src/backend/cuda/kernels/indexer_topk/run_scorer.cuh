// Scores of a block's part of runs of several tokens (score_runs.cuh), by its workers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/indexer_topk/params.h"
#include "backend/cuda/kernels/indexer_topk/score_tiles.cuh"
#include "backend/cuda/kernels/indexer_topk/uneven_rows.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What a run's tokens bring: see ScoreMemory.
struct RunQueries {
  std::uint32_t queries;
  const float* weights;
  const std::int32_t* rows;  // what they see, ascending
};

// Scores of a tile's keys for all tokens of a run of kMostRunTokens, each with one tile of heads: the next token's
// products are under way while a token's are summed over heads. Straight code, since the compiler waits for products
// that are under way across the end of a loop (C7514).
template <class Operand>
__device__ inline void score_full_run(const RunQueries& run, typename Operand::Fragment& keys, float factor,
                                      const LanePlace& place, float* target, std::int64_t stride) {
  constexpr OperandKind kKind = Operand::kKind;
  IndexProduct<kKind> products[2][32];
  start_products<kKind>(products[0], keys, run.queries);
#pragma unroll
  for (int token = 0; token < kMostRunTokens; ++token) {
    auto& now = products[token % 2];
    if (token + 1 < kMostRunTokens) {
      start_products<kKind>(products[(token + 1) % 2], keys, run.queries + (token + 1) * kQueryTileBytes);
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
      hold_keys(keys);
    }
    wgmma_hold(now);
    HeadWeights weights;
    load_weights(run.weights + token * kTileHeads + place.column * 16, weights);
    HeadSums sum = {};
    add_heads<kKind>(now, weights, sum);
    const float score = finish_score<kKind>(sum, factor, place.odd());
    if (place.reports()) *target = score;
    target += stride;
  }
}

// Does the same as score_single() for any run. between(): called before the warpgroup's tile number `between_tiles`, or
// behind its last one where that is the number; below zero never.
template <class Operand, class Between, class ScoreAgain>
__device__ inline void score_run(const ScoreShape& shape, const RunQueries& run, RingReader& ring, int tile, int end,
                                 int tokens, float* out, std::int64_t stride, int between_tiles, const Between& between,
                                 const ScoreAgain& score_again) {
  constexpr OperandKind kKind = Operand::kKind;
  using Products = IndexProduct<kKind>[32];
  const int first_tile = tile;
  UnevenTiles uneven;
  const int query_tiles = warp_uniform(tokens) * shape.head_tiles;
  const LanePlace place;
#pragma unroll 1
  for (;; tile += kScoreGroups) {
    if (between_tiles-- == 0) between();
    if (tile >= end) break;
    typename Operand::Fragment keys;
    const ConvertedKeys converted = take_keys<Operand>(ring, place, keys);
    if constexpr (kKind == OperandKind::kInteger) uneven.add(converted);
    int token = 0;  // the first that sees the tile
#pragma unroll 1
    while (run.rows[token] <= tile * kTileKeys) ++token;
    token = warp_uniform(token);
    float* target = out + token * stride + tile * kTileKeys + place.reported_row();
    if (token == 0 && query_tiles == kMostRunTokens && shape.head_tiles == 1) {
      score_full_run<Operand>(run, keys, converted.factor, place, target, stride);
      continue;
    }
    int query_tile = token * shape.head_tiles;
    int head_tile = 0;
    HeadSums sum = {};
    const auto start = [&](Products& d) { start_products<kKind>(d, keys, run.queries + query_tile * kQueryTileBytes); };
    const auto step = [&](Products& now, Products& next) {
      HeadWeights weights;
      load_weights(run.weights + query_tile * kTileHeads + place.column * 16, weights);
      ++query_tile;
      const bool more = query_tile < query_tiles;
      wgmma_wait<0>();
      wgmma_hold(now);
      hold_keys(keys);
      if (more) start(next);
      add_heads<kKind>(now, weights, sum);
      if (++head_tile == shape.head_tiles) {
        const float score = finish_score<kKind>(sum, converted.factor, place.odd());
        if (place.reports()) *target = score;
        target += stride;
        head_tile = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = 0.0F;
      }
      return more;
    };
    Products d[2];
    start(d[0]);
#pragma unroll 1
    while (step(d[0], d[1]) && step(d[1], d[0])) {
    }
    wgmma_wait<0>();
  }
  if constexpr (kKind == OperandKind::kInteger) {
    const int first = uneven.first(first_tile, end);
    if (first < end) score_again(first);
  }
}

inline constexpr int kRunPartsAhead = 6;  // parts of heads that a thread fetches at a time

// Scores of a part's runs.
template <class Operand>
__device__ inline void score_runs(const IndexerTopkParams& p, const ScoreBatch& batch, const ScoreShape& shape,
                                  const ScoreRuns& runs, const ScorePart& part, const ScoreMemory& memory,
                                  RingReader& ring) {
  const int thread = static_cast<int>(threadIdx.x);
  std::int32_t* const rows = memory.control->rows[0];
  RunTiles tiles;
#pragma unroll 1
  while (true) {
    tiles = tiles.next(runs, part);
    if (thread < tiles.tokens()) rows[thread] = runs.rows(tiles.run.first + thread);
    QueryLoader<Operand>(p, shape.head_tiles)
        .template load<kRunPartsAhead>(batch.first_token + tiles.run.first, tiles.tokens(), memory.queries,
                                       memory.weights);
    fence_async_proxy();
    sync_workers();
    score_run<Operand>(
        shape, {warp_uniform(shared_address(memory.queries)), memory.weights, rows}, ring, first_own_tile(tiles),
        tiles.end(), tiles.tokens(), batch.scores + tiles.run.first * batch.stride, batch.stride, -1, [] {},
        [](int) {});
    if (tiles.is_last(part)) return;
    sync_workers();  // the queries are read no more
  }
}

// The tokens that any worker has.
__device__ inline std::uint32_t gather_tokens(ScoreControl& control, std::uint32_t own) {
  if (threadIdx.x == 0) control.fp16_tokens = 0;
  sync_workers();
  if (own != 0) atomicOr(&control.fp16_tokens, own);
  sync_workers();
  return control.fp16_tokens;
}

// Scores of a part's runs over MXFP4 keys, multiplied as integers where these hold a run's queries. A run's queries are
// brought while the one before is scored: by one warpgroup before its tiles, by the next ones amid theirs, so that the
// others keep the matrix unit busy.
__device__ inline void score_integer_runs(const IndexerTopkParams& p, const ScoreBatch& batch, const ScoreShape& shape,
                                          const ScoreRuns& runs, const ScorePart& part, const ScoreMemory& memory,
                                          RingReader& ring) {
  using Converted = KeyOperand<IndexKeyFormat::kMxfp4>;
  const int thread = static_cast<int>(threadIdx.x);
  ScoreControl& control = *memory.control;
  const std::int32_t half_weights = run_weights(shape, batch.group_tokens) / 2;
  // Keys that are not for integers, from a tile of a run on, of the tokens that are.
  const auto score_again = [&](int half, int from, std::uint32_t fp16_tokens) {
    const RunTiles& tiles = control.tiles[half];
    const UnevenRows uneven(p, tiles.run.sequence);
#pragma unroll 1
    for (int token = 0; token < tiles.tokens(); ++token) {
      if ((fp16_tokens >> token & 1U) != 0) continue;
      float* const out = batch.scores + (tiles.run.first + token) * batch.stride;
      uneven.score_again(batch.first_token + tiles.run.first + token, control.rows[half][token], from, tiles.end(),
                         kScoreGroups, [&](int row) { return StoreScores(out, row); });
    }
  };
  int half = 0;           // where the run's queries are
  bool to_score = false;  // whether its tiles are still to be scored
  if (thread == 0) control.tiles[half] = {};
  sync_workers();
#pragma unroll 1
  while (true) {
    // Read from shared memory where they are needed: registers are full of products.
    const RunTiles& tiles = control.tiles[half];
    const bool more = !tiles.is_last(part);
    std::uint32_t own_fp16_tokens = 0;
    const auto load_next = [&] {
      if (!more) return;
      const RunTiles next = control.tiles[half].next(runs, control.part);
      const int other = half ^ 1;
      if (thread == 0) control.tiles[other] = next;
      if (thread < next.tokens()) control.rows[other][thread] = runs.rows(next.run.first + thread);
      own_fp16_tokens = QueryLoader<IntegerKeys>(p, shape.head_tiles)
                            .template load<kRunPartsAhead>(batch.first_token + next.run.first, next.tokens(),
                                                           memory.queries + other * (kQueryTileBytes / 2),
                                                           memory.weights + other * half_weights);
      fence_async_proxy();
    };
    const int first = first_own_tile(tiles);
    const int end = to_score ? tiles.end() : first;
    const int own_tiles = max(end - first + kScoreGroups - 1, 0) / kScoreGroups;
    const RunQueries queries{warp_uniform(shared_address(memory.queries) + half * (kQueryTileBytes / 2)),
                             memory.weights + half * half_weights, control.rows[half]};
    score_run<IntegerKeys>(
        shape, queries, ring, first, end, tiles.tokens(), batch.scores + tiles.run.first * batch.stride, batch.stride,
        own_tiles * (thread / 128) / kScoreGroups, load_next, [&](int from) { score_again(half, from, 0); });
    if (!more) return;
    to_score = !any_worker(own_fp16_tokens != 0);
    half ^= 1;
    if (to_score) continue;
    const std::uint32_t fp16_tokens = gather_tokens(control, own_fp16_tokens);
    float* const weights = memory.weights + half * half_weights;
    const RunTiles& own = control.tiles[half];
    // To both halves, of which nobody reads any more.
    QueryLoader<Converted>(p, shape.head_tiles)
        .template load<kRunPartsAhead>(batch.first_token + own.run.first, own.tokens(), memory.queries, weights);
    fence_async_proxy();
    sync_workers();
    score_plainly<Converted>(
        shape, shared_address(memory.queries), weights, ring, first_own_tile(own), own.end(), own.tokens(),
        [&](int token, int row) { return StoreScores(batch.scores + (own.run.first + token) * batch.stride, row); });
    if (own.tokens() > 1) score_again(half, first_own_tile(own), fp16_tokens);
    sync_workers();
  }
}

#endif  // sm_90a

}  // namespace dsv4rt::cuda
