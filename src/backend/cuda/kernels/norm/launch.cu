#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/norm/kernel.cuh"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

// A row fills the shared memory that a block has without asking for more.
constexpr std::int64_t kMaxNormWidth = 48 * 1024 / static_cast<std::int64_t>(sizeof(bf16));

bool wide_accesses(const RmsNormParams& params) {
  const auto low = reinterpret_cast<std::uintptr_t>(params.x) | reinterpret_cast<std::uintptr_t>(params.weight) |
                   reinterpret_cast<std::uintptr_t>(params.y);
  return params.width % 8 == 0 && low % 16 == 0;
}

}  // namespace

Status CudaOps::rms_norm(const RmsNormParams& params) {
  DSV4RT_RETURN_IF_ERROR(require(params.tokens >= 0, "rms_norm", "tokens", params.tokens, "0 or more"));
  DSV4RT_RETURN_IF_ERROR(require(params.width >= 1, "rms_norm", "width", params.width, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(
      require_supported(params.width <= kMaxNormWidth, "rms_norm", "width", params.width, "at most 24576"));
  if (params.tokens == 0) return {};
  const auto grid = static_cast<unsigned>(params.tokens);
  const auto shared_bytes = (static_cast<std::size_t>(params.width) * sizeof(bf16) + 15) / 16 * 16;
  if (wide_accesses(params)) {
    rms_norm_kernel<true><<<grid, kNormThreads, shared_bytes, stream_>>>(params);
  } else {
    rms_norm_kernel<false><<<grid, kNormThreads, shared_bytes, stream_>>>(params);
  }
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

}  // namespace dsv4rt::cuda
