// How the scores of a batch are divided: runs of consecutive tokens that share their keys, each over the
// key tiles that the run's last token sees, laid end to end and cut into parts that take equally long, one for a block;
// or, of tokens of like length, each token's tiles among blocks of its own.
//
// A run ends where the sequence changes or the batch's group of tokens does. The division decides who computes
// a score and nothing else.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/indexer_topk/key_operand.cuh"
#include "backend/cuda/kernels/indexer_topk/params.h"

namespace dsv4rt::cuda {

// What a run of several tokens begins with takes, in tiles: it has been measured, and matters where parts are short.
// Runs of one token begin too fast to count.
inline constexpr std::int32_t kRunStartTiles = 6;

// What it takes to select a token's rows, in tiles, where the block that is done with them last does so: that of the
// part in which the token begins if it lies there as a whole, and most often if it lies in two; of a token in more
// parts it may be any. The number has been measured.
inline constexpr std::int32_t kSelectionTiles = 20;

// What a block that changes from one token's queries to another's loses, in tiles, about.
inline constexpr std::int32_t kChangeTiles = 12;

struct ScoreRun {
  std::int32_t first;  // tokens of the batch [first, end)
  std::int32_t end;
  std::int32_t tiles;
  std::int32_t sequence;
};

class ScoreRuns {
 public:
  // selects: the blocks that score select, too.
  __device__ ScoreRuns(const IndexerTopkParams& params, const ScoreBatch& batch, bool selects)
      : p_(params),
        batch_(batch),
        start_tiles_(selects ? kSelectionTiles : batch.group_tokens > 1 ? kRunStartTiles : 0) {}

  [[nodiscard]] __device__ std::int32_t sequence(std::int32_t index) const {
    return p_.step.token_sequence[batch_.first_token + index];
  }
  // Rows to score for a token of a sequence: none where all are selected.
  [[nodiscard]] __device__ std::int32_t rows(std::int32_t index) const {
    const std::int32_t position = p_.step.token_position[batch_.first_token + index];
    const std::int32_t visible = min((position + 1) / p_.ratio, batch_.most_rows);
    return visible > p_.top_k ? visible : 0;
  }
  // Tiles of the run that ends with this token, 0 where none does.
  [[nodiscard]] __device__ std::int32_t tiles_ending(std::int32_t index) const {
    const std::int32_t own = sequence(index);
    const std::int32_t next = index + 1 < batch_.tokens ? sequence(index + 1) : -1;
    const std::int32_t tiles = (rows(index) + kTileKeys - 1) / kTileKeys;
    return own < 0 || (own == next && (index + 1) % batch_.group_tokens != 0) ? 0 : tiles;
  }
  // What a run costs beside its tiles, in tiles, before the first of them.
  [[nodiscard]] __device__ std::int32_t start_tiles() const { return start_tiles_; }
  // The run that ends with this token.
  [[nodiscard]] __device__ ScoreRun run_ending(std::int32_t index, std::int32_t tiles) const {
    ScoreRun run{.first = index, .end = index + 1, .tiles = tiles, .sequence = sequence(index)};
    const std::int32_t group = index - index % batch_.group_tokens;
#pragma unroll 1
    while (run.first > group && sequence(run.first - 1) == run.sequence) --run.first;
    return run;
  }
  // The next run with tiles. There is one. Its tokens are looked up together: one after the other they would take
  // longer than a run's queries.
  [[nodiscard]] __device__ ScoreRun run_after(const ScoreRun& run) const {
    ScoreRun next{.first = run.end, .end = run.end, .tiles = 0, .sequence = -1};
#pragma unroll 1
    while (next.tiles == 0) {
      next.first = next.end;
      const std::int32_t group_end =
          min(next.first - next.first % batch_.group_tokens + batch_.group_tokens, batch_.tokens);
      std::int32_t sequences[kMostRunTokens];
#pragma unroll
      for (int i = 0; i < kMostRunTokens; ++i) sequences[i] = sequence(min(next.first + i, group_end - 1));
      next.sequence = sequences[0];
      std::int32_t same = 1;
#pragma unroll
      for (int i = 1; i < kMostRunTokens; ++i) same += same == i && sequences[i] == sequences[0] ? 1 : 0;
      next.end = min(next.first + same, group_end);
      next.tiles = tiles_ending(next.end - 1);
    }
    return next;
  }

 private:
  const IndexerTopkParams& p_;
  const ScoreBatch& batch_;
  std::int32_t start_tiles_;
};

// A block's part: `tiles` tiles from tile `first_tile` of `run` on. Without tiles, as where a cut and the next one fall
// into what a run costs beside them, the rest says nothing.
struct ScorePart {
  std::int32_t tiles;
  std::int32_t first_tile;
  ScoreRun run;
};

// A run's tiles in a block's part: [tile, tile + count), of which the first one has this number in the part.
struct RunTiles {
  ScoreRun run;
  std::int32_t tile = 0;
  std::int32_t count = 0;  // 0: before the part's first run
  std::int32_t number = 0;

  [[nodiscard]] __device__ std::int32_t tokens() const { return run.end - run.first; }
  [[nodiscard]] __device__ std::int32_t end() const { return tile + count; }
  [[nodiscard]] __device__ bool is_last(const ScorePart& part) const { return number + count == part.tiles; }
  // Those of the part's next run. There is one.
  [[nodiscard]] __device__ RunTiles next(const ScoreRuns& runs, const ScorePart& part) const {
    RunTiles next{.run = part.run, .tile = part.first_tile, .number = number + count};
    if (count > 0) {
      next.run = runs.run_after(run);
      next.tile = 0;
    }
    next.count = min(next.run.tiles - next.tile, part.tiles - next.number);
    return next;
  }
};

// Sums over runs.
struct RunSum {
  std::int32_t cost = 0;  // tiles, and what runs cost beside them
  std::int32_t tiles = 0;

  __device__ void add(std::int32_t run_tiles, std::int32_t start_tiles) {
    if (run_tiles > 0) cost += start_tiles + run_tiles;
    tiles += run_tiles;
  }
};

// Called by kThreads threads, whole warps, which meet at sync(); `thread` is the calling one's number among them.
// `part` is valid after their next barrier.
template <int kThreads, class Sync>
__device__ inline void find_score_part(const ScoreRuns& runs, std::int32_t tokens, int thread, const Sync& sync,
                                       RunSum* warp_total, ScorePart& part) {
  const std::int32_t share = (tokens + kThreads - 1) / kThreads;
  const std::int32_t begin = min(thread * share, tokens);
  const std::int32_t end = min(begin + share, tokens);
  const std::int32_t start_tiles = runs.start_tiles();
  RunSum own;
#pragma unroll 1
  for (std::int32_t i = begin; i < end; ++i) own.add(runs.tiles_ending(i), start_tiles);
  RunSum sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t cost = __shfl_up_sync(0xffffffffU, sum.cost, static_cast<unsigned>(distance));
    const std::int32_t tiles = __shfl_up_sync(0xffffffffU, sum.tiles, static_cast<unsigned>(distance));
    if (thread % 32 >= distance) {
      sum.cost += cost;
      sum.tiles += tiles;
    }
  }
  if (thread % 32 == 31) warp_total[thread / 32] = sum;
  if (thread == 0) part.tiles = 0;
  sync();
  RunSum before{.cost = sum.cost - own.cost, .tiles = sum.tiles - own.tiles};
  RunSum total;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < thread / 32) {
      before.cost += warp_total[w].cost;
      before.tiles += warp_total[w].tiles;
    }
    total.cost += warp_total[w].cost;
    total.tiles += warp_total[w].tiles;
  }
  // found(a run's last token, its tiles, one of them, that tile's number) by the thread that added up the run into
  // which the cut falls: for the first tile after it.
  const auto find = [&](std::int32_t cut, const auto& found) {
    if (cut < before.cost || cut >= before.cost + own.cost) return;
    RunSum passed = before;
#pragma unroll 1
    for (std::int32_t i = begin; i < end; ++i) {
      const std::int32_t run_tiles = runs.tiles_ending(i);
      const RunSum earlier = passed;
      passed.add(run_tiles, start_tiles);
      if (cut >= passed.cost) continue;
      const std::int32_t tile = max(cut - earlier.cost - start_tiles, 0);
      found(i, run_tiles, tile, earlier.tiles + tile);
      return;
    }
  };
  const auto blocks = static_cast<std::int32_t>(gridDim.x);
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t each = total.cost / blocks;
  const std::int32_t more = total.cost - each * blocks;  // number of blocks that take one more
  const std::int32_t from = each * block + min(block, more);
  const std::int32_t to = from + each + (block < more ? 1 : 0);
  find(from, [&](std::int32_t last, std::int32_t run_tiles, std::int32_t tile, std::int32_t number) {
    part.first_tile = tile;
    part.run = runs.run_ending(last, run_tiles);
    atomicSub(&part.tiles, number);
  });
  find(to, [&](std::int32_t, std::int32_t, std::int32_t, std::int32_t number) { atomicAdd(&part.tiles, number); });
  if (thread == 0 && from < to && to == total.cost) atomicAdd(&part.tiles, total.tiles);
}

// The token whose tiles the block has where each token has as many blocks of its own; -1 where blocks do not divide so.
__device__ inline std::int32_t token_of_block(std::int32_t tokens) {
  const auto blocks = static_cast<std::int32_t>(gridDim.x);
  const std::int32_t each = blocks / tokens;
  return each * tokens == blocks ? static_cast<std::int32_t>(blockIdx.x) / each : -1;
}

// As find_score_part() for runs of a token each, of which the block has `token`, token_of_block()'s, unless the longest
// token's blocks would then be done later than blocks that change from one token to another. False in that case:
// find_score_part() serves. Called by whole warps; one thread `writes`.
__device__ inline bool find_token_part(const ScoreRuns& runs, std::int32_t tokens, std::int32_t token, bool writes,
                                       ScorePart& part) {
  const auto blocks = static_cast<std::int32_t>(gridDim.x);
  const std::int32_t each = blocks / tokens;
  // Each warp for itself.
  std::int32_t total = 0;
  std::int32_t most = 0;
#pragma unroll 1
  for (auto i = static_cast<std::int32_t>(threadIdx.x % 32); i < tokens; i += 32) {
    const std::int32_t tiles = runs.tiles_ending(i);
    total += tiles;
    most = max(most, tiles);
  }
  total = __reduce_add_sync(0xffffffffU, total);
  most = __reduce_max_sync(0xffffffffU, most);
  if ((most + each - 1) / each > total / blocks + kChangeTiles) return false;
  if (writes) {
    const auto block = static_cast<std::int32_t>(blockIdx.x);
    const std::int32_t number = block - token * each;
    const std::int32_t tiles = runs.tiles_ending(token);
    const std::int32_t share = tiles / each;
    const std::int32_t more = tiles - share * each;  // number of the token's blocks that take one more
    part.first_tile = share * number + min(number, more);
    part.tiles = share + (number < more ? 1 : 0);
    part.run = runs.run_ending(token, tiles);
  }
  return true;
}

}  // namespace dsv4rt::cuda
