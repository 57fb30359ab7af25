#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/swa/kernel.cuh"
#include "base/try.h"

namespace dsv4rt::cuda {

Status CudaOps::swa_cache_write(const SwaCacheWriteParams& params) {
  const std::int32_t tokens = params.step.counts.tokens;
  DSV4RT_RETURN_IF_ERROR(require_shape(params.ring.shape, params.ring.format, "swa_cache_write", "ring.shape"));
  DSV4RT_RETURN_IF_ERROR(require_shape(params.staged_shape, params.ring.format, "swa_cache_write", "staged_shape"));
  DSV4RT_RETURN_IF_ERROR(require(tokens <= params.staged_shape.rows, "swa_cache_write", "step.counts.tokens", tokens,
                                 "at most the rows of staged_shape"));
  if (tokens <= 0) return {};
  const auto grid = static_cast<unsigned>((tokens + kStoreWarps - 1) / kStoreWarps);
  return launch_pdl(window_store_kernel, {.grid = dim3(grid), .threads = 32 * kStoreWarps}, stream_, params);
}

}  // namespace dsv4rt::cuda
