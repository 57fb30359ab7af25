// Launches one encoding of the portable kernel; a small translation unit each keeps rebuilds short.
#pragma once

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/linear/portable/portable_kernel.cuh"

namespace dsv4rt::cuda {

template <WeightEncoding Encoding, bool kFloatOutput>
Status launch_portable_as(const PortableParams& p, int item_tokens, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.outputs + kTileRows - 1) / kTileRows),
                  static_cast<unsigned>((p.tokens + item_tokens - 1) / item_tokens));
  constexpr unsigned kThreads = kLinearWarps * 32;
  switch (item_tokens / kTokensPerMma) {
    case 1:
      linear_portable_kernel<Encoding, 1, kFloatOutput><<<grid, kThreads, 0, stream>>>(p);
      break;
    case 4:
      linear_portable_kernel<Encoding, 4, kFloatOutput><<<grid, kThreads, 0, stream>>>(p);
      break;
    case 8:
      linear_portable_kernel<Encoding, 8, kFloatOutput><<<grid, kThreads, 0, stream>>>(p);
      break;
    default:
      return {StatusCode::kInternal, "linear: no portable kernel for these tokens"};
  }
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

template <WeightEncoding Encoding>
Status launch_portable(const PortableParams& p, OutputType output, int item_tokens, cudaStream_t stream) {
  return output == OutputType::kF32 ? launch_portable_as<Encoding, true>(p, item_tokens, stream)
                                    : launch_portable_as<Encoding, false>(p, item_tokens, stream);
}

}  // namespace dsv4rt::cuda
