// Launches one encoding of the linear kernel; a small translation unit each keeps rebuilds short.
#pragma once

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/linear/portable/portable_kernel.cuh"

namespace dsv4rt::cuda {

template <WeightEncoding Encoding, bool kFloatOutput>
Status launch_linear_as(const LinearKernelParams& p, cudaStream_t stream) {
  const auto groups = static_cast<unsigned>((p.outputs + kTileRows - 1) / kTileRows);
  const auto blocks_of = [&](int tiles) {
    return static_cast<unsigned>((p.tokens + tiles * kTokensPerMma - 1) / (tiles * kTokensPerMma));
  };
  constexpr unsigned kThreads = kLinearWarps * 32;
  // The number of tokens a block handles changes how often weights are read, never a result.
  if (p.tokens <= 8) {
    linear_kernel<Encoding, 1, kFloatOutput><<<dim3(groups, blocks_of(1)), kThreads, 0, stream>>>(p);
  } else if (p.tokens <= 32) {
    linear_kernel<Encoding, 4, kFloatOutput><<<dim3(groups, blocks_of(4)), kThreads, 0, stream>>>(p);
  } else {
    linear_kernel<Encoding, 8, kFloatOutput><<<dim3(groups, blocks_of(8)), kThreads, 0, stream>>>(p);
  }
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

template <WeightEncoding Encoding>
Status launch_linear(const LinearKernelParams& p, OutputType output, cudaStream_t stream) {
  return output == OutputType::kF32 ? launch_linear_as<Encoding, true>(p, stream)
                                    : launch_linear_as<Encoding, false>(p, stream);
}

Status launch_linear_bf16(const LinearKernelParams& p, OutputType output, cudaStream_t stream);
Status launch_linear_fp8(const LinearKernelParams& p, OutputType output, cudaStream_t stream);
Status launch_linear_nvfp4(const LinearKernelParams& p, OutputType output, cudaStream_t stream);

}  // namespace dsv4rt::cuda
