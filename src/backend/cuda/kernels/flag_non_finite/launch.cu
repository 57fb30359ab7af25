#include <cstdint>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/flag_non_finite/kernel.cuh"
#include "base/try.h"

namespace dsv4rt::cuda {

Status CudaOps::flag_non_finite(const FlagNonFiniteParams& params) {
  constexpr const char* kName = "flag_non_finite";
  DSV4RT_RETURN_IF_ERROR(require(params.width >= 1, kName, "width", params.width, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(params.x, alignof(bf16), kName, "x"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(params.flags, alignof(std::int32_t), kName, "flags"));
  if (params.step.counts.tokens == 0) return {};
  const bool wide = params.width % 8 == 0 && reinterpret_cast<std::uintptr_t>(params.x) % sizeof(uint4) == 0;
  return launch_pdl(wide ? flag_non_finite_kernel<true> : flag_non_finite_kernel<false>,
                    {.grid = dim3(static_cast<unsigned>(params.step.counts.tokens)), .threads = kFlagThreads}, stream_,
                    params);
}

}  // namespace dsv4rt::cuda
