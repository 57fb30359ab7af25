#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/query/kernel.cuh"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int32_t kMaxGridY = 65535;

dim3 grid_of(std::int32_t tokens, std::int32_t heads, std::int32_t heads_per_block) {
  return {static_cast<unsigned>(tokens), static_cast<unsigned>((heads + heads_per_block - 1) / heads_per_block)};
}

}  // namespace

Status CudaOps::query(const QueryParams& params) {
  DSV4RT_RETURN_IF_ERROR(require(params.heads >= 1 && params.heads <= kMaxGridY * kQueryHeads, "query", "heads",
                                 params.heads, "1 to 524280"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(params.q, 16, "query", "q"));
  if (params.step.counts.tokens <= 0) return {};
  query_kernel<<<grid_of(params.step.counts.tokens, params.heads, kQueryHeads), 32 * kQueryWarps, 0, stream_>>>(
      params);
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

}  // namespace dsv4rt::cuda
