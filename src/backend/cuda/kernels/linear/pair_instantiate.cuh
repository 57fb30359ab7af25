// One variant of the pair kernel; a small translation unit each keeps rebuilds short.
#pragma once

#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/pair_kernel.cuh"
#include "backend/cuda/kernels/linear/pair_variant.h"
#include "base/try.h"

namespace dsv4rt::cuda {

template <int kTokens>
Result<PairDevice> ask_pair_device() {
  PairDevice limits;
  int device = 0;
  int sms = 0;
  DSV4RT_CUDA_TRY(cudaGetDevice(&device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  DSV4RT_CUDA_TRY(cudaFuncSetAttribute(linear_pair_kernel<kTokens>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       limits.shared_bytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kPairBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(sms * kPairBlocks));
  config.blockDim = dim3(kPairThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(limits.shared_bytes);
  config.attrs = &cluster;
  config.numAttrs = 1;
  DSV4RT_CUDA_TRY(cudaOccupancyMaxActiveClusters(&limits.pairs, linear_pair_kernel<kTokens>, &config));
  return limits;
}

template <int kTokens>
const Result<PairDevice>& pair_device() {
  static const Result<PairDevice> limits = ask_pair_device<kTokens>();
  return limits;
}

template <int kTokens>
Status launch_pairs(const PairParams& params, int pairs, int shared_bytes, cudaStream_t stream) {
  return launch_pdl(linear_pair_kernel<kTokens>,
                    {.grid = dim3(static_cast<unsigned>(pairs * kPairBlocks)),
                     .threads = kPairThreads,
                     .shared_bytes = static_cast<std::size_t>(shared_bytes),
                     .cluster_blocks = kPairBlocks},
                    stream, params);
}

template <int kTokens>
const PairVariant& pair_variant() {
  using Shape = PairShape<kTokens>;
  static const PairVariant variant{.tokens = kTokens,
                                   .share_tokens = Shape::kShareTokens,
                                   .input_bytes = Shape::kInputBytes,
                                   .other_bytes = Shape::kOtherBytes,
                                   .box_tokens = &Shape::box_tokens,
                                   .device = &pair_device<kTokens>,
                                   .launch = &launch_pairs<kTokens>};
  return variant;
}

}  // namespace dsv4rt::cuda
