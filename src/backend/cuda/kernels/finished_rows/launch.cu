#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/finished_rows/kernel.cuh"
#include "backend/move_checks.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Status CudaOps::copy_finished_rows(RowDirection direction, const FinishedRowsParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_finished_rows(params));
  const std::int32_t tokens = params.step.counts.tokens;
  if (tokens == 0) return {};
  constexpr std::int32_t kBlockTokens = 32 * kFinishedWarps;
  const auto grid = static_cast<unsigned>((tokens + kBlockTokens - 1) / kBlockTokens);
  return launch_pdl(finished_rows_kernel, {.grid = dim3(grid), .threads = 32 * kFinishedWarps}, stream_, params,
                    direction);
}

}  // namespace dsv4rt::cuda
