// One variant of the prefill kernel; a small translation unit each keeps rebuilds short.
#pragma once

#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/prefill/prefill_kernel.cuh"
#include "backend/cuda/kernels/linear/prefill/prefill_variant.h"
#include "base/try.h"

namespace dsv4rt::cuda {

template <int kTokens>
Result<PrefillDevice> ask_prefill_device() {
  PrefillDevice limits;
  int device = 0;
  int sms = 0;
  DSV4RT_CUDA_TRY(cudaGetDevice(&device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  DSV4RT_CUDA_TRY(cudaFuncSetAttribute(linear_prefill_kernel<kTokens>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       limits.shared_bytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kPrefillBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(sms * kPrefillBlocks));
  config.blockDim = dim3(kPrefillThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(limits.shared_bytes);
  config.attrs = &cluster;
  config.numAttrs = 1;
  DSV4RT_CUDA_TRY(cudaOccupancyMaxActiveClusters(&limits.pairs, linear_prefill_kernel<kTokens>, &config));
  return limits;
}

template <int kTokens>
const Result<PrefillDevice>& prefill_device() {
  static const Result<PrefillDevice> limits = ask_prefill_device<kTokens>();
  return limits;
}

template <int kTokens>
Status launch_prefill(const PrefillParams& params, int pairs, int shared_bytes, cudaStream_t stream) {
  return launch_pdl(linear_prefill_kernel<kTokens>,
                    {.grid = dim3(static_cast<unsigned>(pairs * kPrefillBlocks)),
                     .threads = kPrefillThreads,
                     .shared_bytes = static_cast<std::size_t>(shared_bytes),
                     .cluster_blocks = kPrefillBlocks},
                    stream, params);
}

template <int kTokens>
const PrefillVariant& prefill_variant() {
  using Shape = PrefillShape<kTokens>;
  static const PrefillVariant variant{.tokens = kTokens,
                                      .share_tokens = Shape::kShareTokens,
                                      .input_bytes = Shape::kInputBytes,
                                      .other_bytes = Shape::kOtherBytes,
                                      .box_tokens = &Shape::box_tokens,
                                      .device = &prefill_device<kTokens>,
                                      .launch = &launch_prefill<kTokens>};
  return variant;
}

}  // namespace dsv4rt::cuda
