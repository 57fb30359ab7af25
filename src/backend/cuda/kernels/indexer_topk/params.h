// What the kernels of indexer_topk share beside the operation's own parameters.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/indexer_topk/select_state.h"
#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kKeyTileRows = 256;  // keys that a block scores at a time
inline constexpr int kMostIndexHeads = 128;
inline constexpr int kMostRunTokens = 8;  // limit of ScoreBatch::group_tokens

// Rows of a token that one kernel scores and selects from (fused_kernel.cuh); with more, counting them as they are
// scored by all blocks is faster.
inline constexpr std::int32_t kMostFewRows = 2560;  // in whole tiles

// Of up to so many rows that share the digits so far one is found by comparing all with each other (row_selector.cuh).
inline constexpr std::uint32_t kMostComparedRows = 32;

// The tokens whose scores are held at the same time.
struct ScoreBatch {
  std::int64_t first_token = 0;
  std::int32_t tokens = 0;
  std::int32_t group_tokens = 1;  // consecutive tokens that a block takes over the same keys
  std::int32_t most_rows = 0;     // bound of a token's visible rows
  std::int64_t stride = 0;        // floats of a row of `scores`: most_rows in whole tiles
  float* scores = nullptr;        // [tokens, stride]
  SelectState* state = nullptr;   // [tokens], all zero; null: the batch has none
  bool selected_apart = false;    // rows are counted in `state` for another kernel that selects
};

// Index rows that a token sees; 0 for padding. Both of what says so is asked for at once.
__host__ __device__ inline std::int32_t visible_index_rows(const IndexerTopkParams& p, std::int64_t token,
                                                           std::int32_t most_rows) {
  const std::int32_t sequence = p.step.token_sequence[token];
  const std::int32_t rows = (p.step.token_position[token] + 1) / p.ratio;
  return sequence < 0 ? 0 : rows < most_rows ? rows : most_rows;
}

}  // namespace dsv4rt::cuda
