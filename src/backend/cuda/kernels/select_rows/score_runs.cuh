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
  std::int32_t first;  // tokens of the batch [first, end)
  std::int32_t end;
  std::int32_t tiles;
  std::int32_t sequence;
};

class ScoreRuns {
 public:
  __device__ ScoreRuns(const SelectRowsParams& params, const ScoreBatch& batch) : p_(params), batch_(batch) {}

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
  // The run that ends with this token.
  [[nodiscard]] __device__ ScoreRun run_ending(std::int32_t index, std::int32_t tiles) const {
    ScoreRun run{.first = index, .end = index + 1, .tiles = tiles, .sequence = sequence(index)};
    const std::int32_t group = index - index % batch_.group_tokens;
#pragma unroll 1
    while (run.first > group && sequence(run.first - 1) == run.sequence) --run.first;
    return run;
  }
  // The next run with tiles. There is one.
  [[nodiscard]] __device__ ScoreRun run_after(const ScoreRun& run) const {
    std::int32_t index = run.end;
    std::int32_t tiles = 0;
#pragma unroll 1
    while ((tiles = tiles_ending(index)) == 0) ++index;
    return run_ending(index, tiles);
  }

 private:
  const SelectRowsParams& p_;
  const ScoreBatch& batch_;
};

// A block's part: `tiles` tiles from tile `first_tile` of `run` on.
struct ScorePart {
  std::int32_t tiles;
  std::int32_t first_tile;
  ScoreRun run;
};

// Called by all kThreads threads; `part` is valid after the next barrier.
template <int kThreads>
__device__ inline void find_score_part(const ScoreRuns& runs, std::int32_t tokens,
                                       std::uint32_t (&warp_total)[kThreads / 32], ScorePart& part) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::int32_t share = (tokens + kThreads - 1) / kThreads;
  const std::int32_t begin = min(thread * share, tokens);
  const std::int32_t end = min(begin + share, tokens);
  std::uint32_t own = 0;
#pragma unroll 1
  for (std::int32_t i = begin; i < end; ++i) own += static_cast<std::uint32_t>(runs.tiles_ending(i));
  std::uint32_t sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::uint32_t below = __shfl_up_sync(0xffffffffU, sum, static_cast<unsigned>(distance));
    if (thread % 32 >= distance) sum += below;
  }
  if (thread % 32 == 31) warp_total[thread / 32] = sum;
  __syncthreads();
  std::uint32_t before = sum - own;
  std::uint32_t total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < thread / 32) before += warp_total[w];
    total += warp_total[w];
  }
  const std::uint32_t each = total / gridDim.x;
  const std::uint32_t more = total - each * gridDim.x;  // so many blocks take one tile more
  const std::uint32_t from = each * blockIdx.x + min(blockIdx.x, more);
  const std::uint32_t tiles = each + (blockIdx.x < more ? 1 : 0);
  if (tiles == 0) {
    if (thread == 0) part.tiles = 0;
    return;
  }
  if (from < before || from >= before + own) return;
#pragma unroll 1
  for (std::int32_t i = begin; i < end; ++i) {
    const std::int32_t run_tiles = runs.tiles_ending(i);
    if (from < before + static_cast<std::uint32_t>(run_tiles)) {
      part.tiles = static_cast<std::int32_t>(tiles);
      part.first_tile = static_cast<std::int32_t>(from - before);
      part.run = runs.run_ending(i, run_tiles);
      return;
    }
    before += static_cast<std::uint32_t>(run_tiles);
  }
}

}  // namespace dsv4rt::cuda
