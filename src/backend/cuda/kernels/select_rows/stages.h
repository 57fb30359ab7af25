// The two stages of select_rows over a batch of tokens, and both in one.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/select_rows/params.h"
#include "backend/cuda/scratch.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// Checks the parameters and places the scores of as many tokens as the scratch region holds, the first batch;
// `scores` stays null if no token can have more than top_k visible rows.
Result<ScoreBatch> plan_scores(const SelectRowsParams& params, const Scratch& scratch);

// Scores of every token of the batch with more than top_k visible rows; other tokens' are not written.
Status launch_scores(const SelectRowsParams& params, const ScoreBatch& batch, cudaStream_t stream);
Status launch_portable_scores(const SelectRowsParams& params, const ScoreBatch& batch, cudaStream_t stream);
// On Hopper, one block on each of `processors` multiprocessors.
bool wgmma_scores_apply(const SelectRowsParams& params);
Status launch_wgmma_scores(const SelectRowsParams& params, const ScoreBatch& batch, std::int32_t processors,
                           cudaStream_t stream);

// Chooses from the scores.
Status launch_top_k(const SelectRowsParams& params, const ScoreBatch& batch, cudaStream_t stream);

// Both stages in one kernel, where wgmma_scores_apply and few rows are to be scored: the blocks for each token that
// have a place at the same time, 0 where the two kernels serve.
Result<std::int32_t> fused_blocks(const SelectRowsParams& params, const ScoreBatch& batch, std::int32_t processors);
Status launch_fused(const SelectRowsParams& params, const ScoreBatch& batch, std::int32_t blocks, cudaStream_t stream);

// Both stages, by one kernel or two.
Status launch_selection(const SelectRowsParams& params, const ScoreBatch& batch, cudaStream_t stream);

}  // namespace dsv4rt::cuda
