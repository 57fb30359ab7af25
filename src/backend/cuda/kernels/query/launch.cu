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

Status CudaOps::rotate_heads(const RotateHeadsParams& params) {
  DSV4RT_RETURN_IF_ERROR(require(params.heads >= 1 && params.heads <= kMaxGridY * kRotateHeads, "rotate_heads",
                                 "heads", params.heads, "1 to 4194240"));
  DSV4RT_RETURN_IF_ERROR(require(params.head_dim >= kRopeDim && params.head_dim % 8 == 0, "rotate_heads", "head_dim",
                                 params.head_dim, "multiples of 8 from 64"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(params.x, 16, "rotate_heads", "x"));
  if (params.step.counts.tokens <= 0 || params.rope.inverse_frequency == nullptr) return {};
  rotate_heads_kernel<<<grid_of(params.step.counts.tokens, params.heads, kRotateHeads), kRotateThreads, 0, stream_>>>(
      params);
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

}  // namespace dsv4rt::cuda
