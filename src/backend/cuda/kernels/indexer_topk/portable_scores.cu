// Index scores by the instructions that every supported architecture has.
#include <algorithm>
#include <cstdint>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/indexer_topk/score_kernel.cuh"
#include "backend/cuda/kernels/indexer_topk/stages.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int64_t kScoreBlocksWanted = 1024;  // about four for each place on the machine
constexpr const char* kName = "indexer_topk";

template <IndexKeyFormat kFormat>
Status launch_scores_of(const CudaDevice& device, const IndexerTopkParams& p, const ScoreBatch& batch,
                        cudaStream_t stream) {
  const auto kernel = score_rows_kernel<kFormat>;
  DSV4RT_RETURN_IF_ERROR(device.prepare(kernel, sizeof(ScoreShared)));
  const std::int64_t groups = ceil_div<std::int64_t>(batch.tokens, batch.group_tokens);
  const std::int64_t tiles = batch.stride / kKeyTileRows;
  const dim3 grid(static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(kScoreBlocksWanted, groups), 1, tiles)),
                  static_cast<unsigned>(groups));
  kernel<<<grid, kScoreThreads, sizeof(ScoreShared), stream>>>(p, batch);
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

}  // namespace

Status launch_portable_scores(const CudaDevice& device, const IndexerTopkParams& p, const ScoreBatch& batch,
                              cudaStream_t stream) {
  switch (p.key_format) {
    case IndexKeyFormat::kMxfp4:
      return launch_scores_of<IndexKeyFormat::kMxfp4>(device, p, batch, stream);
    case IndexKeyFormat::kNvfp4:
      return launch_scores_of<IndexKeyFormat::kNvfp4>(device, p, batch, stream);
    case IndexKeyFormat::kFp8:
      return launch_scores_of<IndexKeyFormat::kFp8>(device, p, batch, stream);
    case IndexKeyFormat::kBf16:
      return launch_scores_of<IndexKeyFormat::kBf16>(device, p, batch, stream);
  }
  return refused(StatusCode::kUnsupported, kName, "key_format", static_cast<std::int64_t>(p.key_format),
                 "an IndexKeyFormat");
}

}  // namespace dsv4rt::cuda
