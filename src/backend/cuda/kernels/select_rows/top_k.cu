// Launch of the selection.
#include <algorithm>
#include <cstdint>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/select_rows/stages.h"
#include "backend/cuda/kernels/select_rows/top_k_kernel.cuh"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kFewHeldQuads = 4;
constexpr int kManyHeldQuads = 16;

template <int kHeldQuads>
Status launch_of(const SelectRowsParams& p, const ScoreBatch& batch, std::int32_t blocks, cudaStream_t stream) {
  const auto kernel = top_k_rows_kernel<kHeldQuads>;
  DSV4RT_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(TopKShared)));
  return launch_pdl(kernel,
                    {.grid = dim3(static_cast<unsigned>(batch.tokens) * static_cast<unsigned>(blocks)),
                     .threads = kTopKThreads,
                     .shared_bytes = sizeof(TopKShared),
                     .cluster_blocks = static_cast<unsigned>(blocks)},
                    stream, p, batch);
}

}  // namespace

Status launch_top_k(const SelectRowsParams& params, const ScoreBatch& batch, cudaStream_t stream) {
  // Blocks enough that the ranks of a token at the bound of visible rows stay in registers.
  const std::int64_t few = ceil_div<std::int64_t>(batch.most_rows, kTopKWarps * kQuadRows * kFewHeldQuads);
  std::int32_t blocks = 1;
  while (blocks < kMostTopKBlocks && blocks < few) blocks *= 2;
  if (few <= kMostTopKBlocks) return launch_of<kFewHeldQuads>(params, batch, blocks, stream);
  return launch_of<kManyHeldQuads>(params, batch, blocks, stream);
}

}  // namespace dsv4rt::cuda
