#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/pair_kernel.cuh"
#include "backend/cuda/kernels/linear/pair_launch.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

Result<PairDevice> ask_pair_device() {
  PairDevice limits;
  int device = 0;
  int sms = 0;
  DSV4RT_CUDA_TRY(cudaGetDevice(&device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  DSV4RT_CUDA_TRY(
      cudaFuncSetAttribute(linear_pair_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limits.shared_bytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kPairBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(sms * kPairBlocks));
  config.blockDim = dim3(kPairThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(limits.shared_bytes);
  config.attrs = &cluster;
  config.numAttrs = 1;
  DSV4RT_CUDA_TRY(cudaOccupancyMaxActiveClusters(&limits.pairs, linear_pair_kernel, &config));
  return limits;
}

}  // namespace

const Result<PairDevice>& pair_device() {
  static const Result<PairDevice> limits = ask_pair_device();
  return limits;
}

Status launch_pairs(const PairParams& params, int pairs, int shared_bytes, cudaStream_t stream) {
  return launch_pdl(linear_pair_kernel,
                    {.grid = dim3(static_cast<unsigned>(pairs * kPairBlocks)),
                     .threads = kPairThreads,
                     .shared_bytes = static_cast<std::size_t>(shared_bytes),
                     .cluster_blocks = kPairBlocks},
                    stream, params);
}

}  // namespace dsv4rt::cuda
