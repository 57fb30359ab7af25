#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/index_query/kernel.cuh"
#include "base/try.h"

namespace dsv4rt::cuda {

Status CudaOps::index_query(const IndexQueryParams& params) {
  constexpr std::int32_t kMaxGridY = 65535;
  DSV4RT_RETURN_IF_ERROR(require(params.heads >= 1 && params.heads <= kMaxGridY * kIndexQueryHeads, "index_query",
                                 "heads", params.heads, "1 to 1048560"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(params.q, 8, "index_query", "q"));
  if (params.step.counts.tokens <= 0) return {};
  const dim3 grid(static_cast<unsigned>(params.step.counts.tokens),
                  static_cast<unsigned>((params.heads + kIndexQueryHeads - 1) / kIndexQueryHeads));
  index_query_kernel<<<grid, 32 * kIndexQueryWarps, 0, stream_>>>(params);
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

}  // namespace dsv4rt::cuda
