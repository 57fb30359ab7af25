// How the scores of a batch are divided: runs of consecutive tokens that share their keys, each over the
// key tiles that the run's last token sees, laid end to end and cut into equal parts, one for a block.
//
// A run ends where the sequence changes or the batch's group of tokens does. The division decides who computes
// a score and nothing else.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/select_rows/key_operand.cuh"
#include "backend/cuda/kernels/select_rows/params.h"

namespace dsv4rt::cuda {

struct ScoreRun {
  std::int32_t first = 0;  // tokens of the batch [first, end)
  std::int32_t end = 0;
  std::int32_t tiles = 0;
};

class ScoreRuns {
 public:
  __device__ ScoreRuns(const SelectRowsParams& params, const ScoreBatch& batch) : p_(params), batch_(batch) {}

  [[nodiscard]] __device__ std::int32_t sequence(std::int32_t index) const {
    return p_.step.token_sequence[batch_.first_token + index];
  }
  // Rows to score for a token: none where all are selected.
  [[nodiscard]] __device__ std::int32_t rows(std::int32_t index) const {
    const std::int32_t visible = visible_index_rows(p_, batch_.first_token + index, batch_.most_rows);
    return visible > p_.top_k ? visible : 0;
  }
  // Tiles of the run that ends with this token, 0 where none does.
  [[nodiscard]] __device__ std::int32_t tiles_ending(std::int32_t index) const {
    const std::int32_t next = index + 1;
    if (next < batch_.tokens && next % batch_.group_tokens != 0 && sequence(next) == sequence(index)) return 0;
    return (rows(index) + kTileKeys - 1) / kTileKeys;
  }
  // The first run with tiles that ends at or after this token; without one, `end` is past the batch.
  [[nodiscard]] __device__ ScoreRun run_ending_from(std::int32_t index) const {
    ScoreRun run;
    for (; index < batch_.tokens; ++index) {
      run.tiles = tiles_ending(index);
      if (run.tiles > 0) break;
    }
    run.first = index;
    run.end = index + 1;
    if (run.tiles == 0) return run;
    const std::int32_t group = index - index % batch_.group_tokens;
    while (run.first > group && sequence(run.first - 1) == sequence(index)) --run.first;
    return run;
  }

 private:
  const SelectRowsParams& p_;
  const ScoreBatch& batch_;
};

// A block's part: `tiles` from tile `first_tile` of the run that ends with token `last_token` on.
struct ScorePart {
  std::int32_t tiles = 0;
  std::int32_t last_token = 0;
  std::int32_t first_tile = 0;
};

// Called by all kThreads threads; the result is valid after the next barrier.
template <int kThreads>
__device__ inline void find_score_part(const ScoreRuns& runs, std::int32_t tokens, std::int64_t (&warp_total)[kThreads / 32],
                                       ScorePart& part) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::int32_t share = (tokens + kThreads - 1) / kThreads;
  const std::int32_t begin = min(thread * share, tokens);
  const std::int32_t end = min(begin + share, tokens);
  std::int64_t own = 0;
  for (std::int32_t i = begin; i < end; ++i) own += runs.tiles_ending(i);
  std::int64_t sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int64_t below = __shfl_up_sync(0xffffffffU, sum, static_cast<unsigned>(distance));
    if (thread % 32 >= distance) sum += below;
  }
  if (thread % 32 == 31) warp_total[thread / 32] = sum;
  __syncthreads();
  std::int64_t before = sum - own;
  std::int64_t total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < thread / 32) before += warp_total[w];
    total += warp_total[w];
  }
  const std::int64_t from = total * blockIdx.x / gridDim.x;
  const std::int64_t to = total * (blockIdx.x + 1) / gridDim.x;
  if (thread == 0 && from == to) part.tiles = 0;
  if (from == to || from < before || from >= before + own) return;
  for (std::int32_t i = begin; i < end; ++i) {
    const std::int32_t tiles = runs.tiles_ending(i);
    if (from < before + tiles) {
      part = {.tiles = static_cast<std::int32_t>(to - from), .last_token = i, .first_tile = static_cast<std::int32_t>(from - before)};
      return;
    }
    before += tiles;
  }
}

}  // namespace dsv4rt::cuda
