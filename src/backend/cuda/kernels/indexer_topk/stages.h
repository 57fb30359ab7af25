// The two stages of indexer_topk over a batch of tokens, and both in one.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/indexer_topk/params.h"
#include "backend/cuda/scratch.h"
#include "backend/cuda/slow_path.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// Checks the parameters and places the scores of as many tokens as the scratch region holds, the first batch;
// `scores` stays null if no token can have more than top_k visible rows.
Result<ScoreBatch> plan_scores(const IndexerTopkParams& params, const Scratch& scratch);

// The kernels that serve a batch, from the device, the operation's parameters and the batch alone.
enum class ScoreKernel : std::uint8_t { kNone, kPortable, kWgmma };
struct SelectionPlan {
  ScoreKernel scores = ScoreKernel::kNone;  // kernel of the stage that scores; kNone: nobody has rows to choose among
  std::int32_t fused_blocks =
      0;  // blocks that score and choose for a token of few rows in one kernel; 0: another serves
  // Blocks that select for a token whose rows are counted as they are scored: 1 is the last of those that score, more
  // are a kernel of their own. 0: the rows are not counted.
  std::int32_t counted_blocks = 0;
  SlowPath slow = SlowPath::kNone;
};
Result<SelectionPlan> plan_selection(const CudaDevice& device, const IndexerTopkParams& params,
                                     const ScoreBatch& batch);
// Why a device scores by the portable kernel: kNone where it does not, or has no other.
SlowPath select_slow_path(const DeviceFacts& facts, const IndexerTopkParams& params);

// Scores of every token of the batch with more than top_k visible rows; other tokens' are not written. By the kernel
// that the device has; the others of these functions launch the one they name.
Status launch_scores(const CudaDevice& device, const IndexerTopkParams& params, const ScoreBatch& batch,
                     cudaStream_t stream);
Status launch_portable_scores(const CudaDevice& device, const IndexerTopkParams& params, const ScoreBatch& batch,
                              cudaStream_t stream);
Status launch_wgmma_scores(const CudaDevice& device, const IndexerTopkParams& params, const ScoreBatch& batch,
                           cudaStream_t stream);

// Chooses from the scores.
Status launch_top_k(const CudaDevice& device, const IndexerTopkParams& params, const ScoreBatch& batch,
                    cudaStream_t stream);

// SelectionPlan::counted_blocks where the Hopper kernels score: rows are counted where each token has keys of its own,
// there are at most two tokens a multiprocessor, more than one only with many rows, and the batch has `state`.
std::int32_t counted_blocks(const CudaDevice& device, const IndexerTopkParams& params, const ScoreBatch& batch);
// Both stages with so many blocks.
Status launch_wgmma_selection(const CudaDevice& device, const IndexerTopkParams& params, const ScoreBatch& batch,
                              std::int32_t blocks, cudaStream_t stream);
// Chooses from scores that were counted in the batch's state, `blocks` blocks for a token. The device is prepared.
Status prepare_select_counted(const CudaDevice& device);
Status launch_select_counted(const IndexerTopkParams& params, const ScoreBatch& batch, std::int32_t blocks,
                             cudaStream_t stream);

// Both stages in one kernel on Hopper, where few rows are to be scored: the blocks for each token, which have a place
// at the same time but where one block follows another (fused.cu); 0 where other kernels serve.
Result<std::int32_t> fused_blocks(const CudaDevice& device, const IndexerTopkParams& params, const ScoreBatch& batch);
Status launch_fused(const CudaDevice& device, const IndexerTopkParams& params, const ScoreBatch& batch,
                    std::int32_t blocks, cudaStream_t stream);

// Both stages, by one kernel or two.
Status launch_selection(const CudaDevice& device, const IndexerTopkParams& params, const ScoreBatch& batch,
                        const SelectionPlan& plan, cudaStream_t stream);

}  // namespace dsv4rt::cuda
