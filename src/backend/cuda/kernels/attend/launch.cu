// Attention: what the host checks, and how many blocks share a token.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/attend/kernel.cuh"
#include "backend/cuda/kernels/attend/warpgroup_launch.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::size_t kMostSharedBytes = 232448;  // of a block on compute capability 9.0 and 10.0
static_assert(sizeof(AttendShared<4>) <= kMostSharedBytes);
constexpr std::int64_t kFullMachineBlocks = 128;  // enough to occupy the multiprocessors

constexpr const char* kName = "attend";

Status check(const AttendParams& p) {
  DSV4RT_RETURN_IF_ERROR(require(p.heads >= 1, kName, "heads", p.heads, "at least 1"));
  DSV4RT_RETURN_IF_ERROR(require(p.ratio >= 0, kName, "ratio", p.ratio, "0 (no compressed rows) or more"));
  DSV4RT_RETURN_IF_ERROR(
      require(p.window >= 1 && p.window <= p.ring.shape.rows, kName, "window", p.window, "1 to the ring's rows"));
  DSV4RT_RETURN_IF_ERROR(require(p.staged_shape.rows >= p.step.counts.tokens, kName, "staged_shape.rows",
                                 p.staged_shape.rows, "a row per token"));
  // Rows, queries and outputs move 16 bytes at a time.
  DSV4RT_RETURN_IF_ERROR(require_aligned(p.q, 16, kName, "q"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(p.o, 16, kName, "o"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(p.ring.base, 16, kName, "ring.base"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(p.staged, 16, kName, "staged"));
  DSV4RT_RETURN_IF_ERROR(
      require(p.ring.slot_bytes % 16 == 0, kName, "ring.slot_bytes", p.ring.slot_bytes, "multiples of 16"));
  DSV4RT_RETURN_IF_ERROR(require_shape(p.ring.shape, p.ring.format, kName, "ring.shape"));
  DSV4RT_RETURN_IF_ERROR(require_shape(p.staged_shape, p.ring.format, kName, "staged_shape"));
  if (p.ratio == 0) return {};
  DSV4RT_RETURN_IF_ERROR(require_aligned(p.rows.blocks, 16, kName, "rows.blocks"));
  DSV4RT_RETURN_IF_ERROR(require(p.rows.shape.block_bytes % 16 == 0, kName, "rows.shape.block_bytes",
                                 p.rows.shape.block_bytes, "multiples of 16"));
  return require_shape(p.rows.shape, p.row_format, kName, "rows.shape");
}

template <int kHeadTiles>
Status launch(const AttendParams& p, int cluster_blocks, int more_than_rows, cudaStream_t stream) {
  constexpr std::size_t kSharedBytes = sizeof(AttendShared<kHeadTiles>);
  const auto kernel = attend_kernel<kHeadTiles>;
  DSV4RT_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(cluster_blocks);
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.step.counts.tokens * cluster_blocks),
                        static_cast<unsigned>((p.heads + 16 * kHeadTiles - 1) / (16 * kHeadTiles)));
  config.blockDim = dim3(kAttendThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return DSV4RT_CUDA_STATUS(cudaLaunchKernelEx(&config, kernel, p, cluster_blocks, more_than_rows));
}

// Rows of the longest token, or more.
std::int64_t most_rows_of(const AttendParams& p) {
  const std::int64_t context = p.step.counts.context_end;
  const std::int64_t window = std::min<std::int64_t>(p.window, context);
  return p.ratio == 0 ? window : window + std::min(most_compressed_rows(p), context / p.ratio);
}

// Tokens with more than `more_than_rows` rows, and padding if that is 0.
Status launch_portable(const AttendParams& p, std::int64_t most_rows, int more_than_rows, cudaStream_t stream) {
  const std::int64_t tokens = p.step.counts.tokens;
  const std::int64_t most_chunks = (most_rows + kChunkRows - 1) / kChunkRows;
  const int cluster_blocks = static_cast<int>(std::clamp<std::int64_t>(most_chunks, 1, kMostStrands));
  // Heads share a block as long as the blocks still fill the machine: fewer rows are decoded twice. The
  // number of heads changes no result.
  const auto fills = [&](std::int64_t heads) {
    return p.heads > heads / 2 && tokens * cluster_blocks * ((p.heads + heads - 1) / heads) >= kFullMachineBlocks;
  };
  if (fills(64)) return launch<4>(p, cluster_blocks, more_than_rows, stream);
  if (fills(32)) return launch<2>(p, cluster_blocks, more_than_rows, stream);
  return launch<1>(p, cluster_blocks, more_than_rows, stream);
}

}  // namespace

Status CudaOps::attend(const AttendParams& params) {
  const std::int64_t tokens = params.step.counts.tokens;
  if (tokens == 0) return {};
  DSV4RT_RETURN_IF_ERROR(check(params));
  const std::int64_t most_rows = most_rows_of(params);
  if (warpgroup_applies(params)) {
    DSV4RT_RETURN_IF_ERROR(launch_warpgroup(params, most_rows, stream_));
    if (most_rows <= warpgroup_rows()) return {};
    return launch_portable(params, most_rows, static_cast<int>(warpgroup_rows()), stream_);
  }
  return launch_portable(params, most_rows, 0, stream_);
}

}  // namespace dsv4rt::cuda
