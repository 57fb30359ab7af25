#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/shared/linear_params.h"
#include "backend/cuda/kernels/norm/kernel.cuh"
#include "backend/cuda/kernels/norm/rounded_norm.h"
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

LaunchShape norm_shape(const RmsNormParams& params) {
  return {.grid = dim3(static_cast<unsigned>(params.tokens)),
          .threads = kNormThreads,
          .shared_bytes = (static_cast<std::size_t>(params.width) * sizeof(bf16) + 15) / 16 * 16};
}

}  // namespace

bool rounds_behind_norm(const RmsNormParams& params) {
  return params.tokens > 0 && params.width > 0 && params.width <= kMaxNormWidth &&
         params.width % kScaleBlockInputs == 0 && wide_accesses(params);
}

Status rounded_rms_norm(const RmsNormParams& params, cudaStream_t stream) {
  return launch_pdl(rms_norm_kernel<true, NormOutput::kRounded>, norm_shape(params), stream, params, EncodedRows{});
}

Status encoded_rms_norm(const RmsNormParams& params, const EncodedRows& rows, cudaStream_t stream) {
  return launch_pdl(rms_norm_kernel<true, NormOutput::kEncoded>, norm_shape(params), stream, params, rows);
}

Status CudaOps::rms_norm(const RmsNormParams& params) {
  DSV4RT_RETURN_IF_ERROR(require(params.tokens >= 0, "rms_norm", "tokens", params.tokens, "0 or more"));
  DSV4RT_RETURN_IF_ERROR(require(params.width >= 1, "rms_norm", "width", params.width, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(
      require_supported(params.width <= kMaxNormWidth, "rms_norm", "width", params.width, "at most 24576"));
  if (params.tokens == 0) return {};
  const auto kernel =
      wide_accesses(params) ? rms_norm_kernel<true, NormOutput::kPlain> : rms_norm_kernel<false, NormOutput::kPlain>;
  return launch_pdl(kernel, norm_shape(params), stream_, params, EncodedRows{});
}

}  // namespace dsv4rt::cuda
