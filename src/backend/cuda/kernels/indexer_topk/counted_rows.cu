// Selection of rows that were counted as they were scored, where a token has so many that a block alone would take long
// over them.
#include <cstddef>
#include <cstdint>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/indexer_topk/index_mma.cuh"
#include "backend/cuda/kernels/indexer_topk/row_selector.cuh"
#include "backend/cuda/kernels/indexer_topk/stages.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kCountedThreads = 384;

// A block alone selects from so many rows in the time that a second kernel takes. With few tokens that is less, since
// processors are idle otherwise.
constexpr std::int32_t kMostRowsOfOneBlock = 65536;
constexpr std::int32_t kMostRowsOfFewTokens = 32767;
constexpr std::int32_t kMostRowsOfOneToken = 16383;
constexpr std::int32_t kFewTokens = 8;
constexpr std::int32_t kMostCountedBlocks = 8;

// With more tokens than processors blocks select for two, one after the other. Where a token has so many rows that is
// faster than to count them in a kernel of its own.
constexpr std::int32_t kLeastRowsOfManyTokens = 16385;

// Grid: a cluster for every token of the batch; of those with nothing to choose the scores' kernel has taken care.
__global__ void __launch_bounds__(kCountedThreads, 1)
    select_counted_kernel(const __grid_constant__ IndexerTopkParams p, const __grid_constant__ ScoreBatch batch) {
  extern __shared__ __align__(16) std::byte counted_shared[];
  auto& shared = *reinterpret_cast<SelectorShared*>(counted_shared);
  clear_selector(shared, kCountedThreads);
  allow_dependents();
  const auto index = static_cast<std::int32_t>(blockIdx.x / cluster_blocks());
  const std::int64_t token = batch.first_token + index;
  const std::int32_t rows = visible_index_rows(p, token, batch.most_rows);
  const auto sync = [] { __syncthreads(); };
  RowSelector<kCountedThreads, true, decltype(sync)> selector(shared, batch.scores + index * batch.stride, rows, sync);
  wait_for_predecessors();
  if (rows <= p.top_k) return;
  sync();
  selector.run(batch.state + index, p.top_k, p.topk_indices + token * p.top_k);
}

}  // namespace

std::int32_t counted_blocks(const CudaDevice& device, const IndexerTopkParams& p, const ScoreBatch& batch) {
  const std::int32_t processors = device.multiprocessors();
  if (batch.state == nullptr || batch.group_tokens > 1 || p.heads > kTileHeads || batch.tokens > 2 * processors ||
      (batch.tokens > processors && batch.most_rows < kLeastRowsOfManyTokens) ||
      batch.most_rows > kMostSelectableRows) {
    return 0;
  }
  const std::int32_t most_rows = batch.tokens == 1            ? kMostRowsOfOneToken
                                 : batch.tokens <= kFewTokens ? kMostRowsOfFewTokens
                                                              : kMostRowsOfOneBlock;
  std::int32_t blocks = batch.most_rows <= most_rows ? 1 : kMostCountedBlocks;
  while (blocks > 1 && std::int64_t{blocks} * batch.tokens > processors) blocks /= 2;
  return blocks;
}

Status prepare_select_counted(const CudaDevice& device) {
  return device.prepare(select_counted_kernel, sizeof(SelectorShared));
}

Status launch_select_counted(const IndexerTopkParams& p, const ScoreBatch& batch, std::int32_t blocks,
                             cudaStream_t stream) {
  return launch_pdl(select_counted_kernel,
                    {.grid = dim3(static_cast<unsigned>(batch.tokens) * static_cast<unsigned>(blocks)),
                     .threads = kCountedThreads,
                     .shared_bytes = sizeof(SelectorShared),
                     .cluster_blocks = static_cast<unsigned>(blocks)},
                    stream, p, batch);
}

}  // namespace dsv4rt::cuda
