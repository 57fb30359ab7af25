// Launch of the selection.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/indexer_topk/stages.h"
#include "backend/cuda/kernels/indexer_topk/top_k_kernel.cuh"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

// A multiprocessor holds two blocks; a second one is worth less than fewer blocks to synchronize. A block
// takes this many rows at least.
constexpr std::int64_t kLeastBlockRows = 4096;

// Many tokens of few rows: more blocks on a multiprocessor, each of which waits much of its time.
constexpr int kFewThreads = 256;
constexpr int kManyThreads = 512;
constexpr std::int64_t kManyTokens = 4;  // for every multiprocessor

template <int kThreads, int kHeldQuads, bool kAlone = false>
Status launch_of(const CudaDevice& device, const IndexerTopkParams& p, const ScoreBatch& batch, std::int32_t blocks,
                 cudaStream_t stream) {
  const auto kernel = top_k_rows_kernel<kThreads, kHeldQuads, kAlone>;
  constexpr std::size_t kSharedBytes = sizeof(TopKShared<kThreads, kAlone>);
  DSV4RT_RETURN_IF_ERROR(device.prepare(kernel, kSharedBytes));
  return launch_pdl(kernel,
                    {.grid = dim3(static_cast<unsigned>(batch.tokens) * static_cast<unsigned>(blocks)),
                     .threads = kThreads,
                     .shared_bytes = kSharedBytes,
                     .cluster_blocks = static_cast<unsigned>(blocks)},
                    stream, p, batch);
}

}  // namespace

Status launch_top_k(const CudaDevice& device, const IndexerTopkParams& params, const ScoreBatch& batch,
                    cudaStream_t stream) {
  const std::int64_t processors = device.multiprocessors();
  std::int32_t blocks = 1;
  while (blocks < kMostTopKBlocks && batch.most_rows > blocks * kLeastBlockRows &&
         2 * blocks * std::int64_t{batch.tokens} <= (blocks == 1 ? 2 * processors : processors)) {
    blocks *= 2;
  }
  if (batch.tokens >= kManyTokens * processors) {
    return launch_of<kFewThreads, 2, true>(device, params, batch, 1, stream);
  }
  // Ranks of a token at the bound of visible rows stay in registers, if they fit at all.
  const std::int64_t quads =
      ceil_div<std::int64_t>(batch.most_rows, std::int64_t{blocks} * (kManyThreads / 32) * kQuadRows);
  if (quads <= 4) return launch_of<kManyThreads, 4>(device, params, batch, blocks, stream);
  if (quads <= 8) return launch_of<kManyThreads, 8>(device, params, batch, blocks, stream);
  return launch_of<kManyThreads, 16>(device, params, batch, blocks, stream);
}

}  // namespace dsv4rt::cuda
