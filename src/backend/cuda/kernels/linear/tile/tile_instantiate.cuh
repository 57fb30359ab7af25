// One variant of the tile kernel; a small translation unit each keeps rebuilds short.
#pragma once

#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/tile/tile_kernel.cuh"
#include "backend/cuda/kernels/linear/tile/tile_variant.h"
#include "base/try.h"

namespace dsv4rt::cuda {

template <int kTokens, int kRowTiles>
Result<TileResidency> ask_tile_residency() {
  using Shape = TileShape<kTokens, kRowTiles>;
  int device = 0;
  int sms = 0;
  TileResidency residency;
  DSV4RT_CUDA_TRY(cudaGetDevice(&device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&residency.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const auto kernel = linear_tile_kernel<kTokens, kRowTiles>;
  DSV4RT_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, residency.shared_bytes));
  for (int i = 0; i < kTileClusterCount; ++i) {
    const auto blocks = static_cast<unsigned>(kTileClusters[i]);
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {blocks, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(sms) * blocks);
    config.blockDim = dim3(Shape::kThreads);
    config.dynamicSmemBytes = static_cast<std::size_t>(residency.shared_bytes);
    config.attrs = &cluster;
    config.numAttrs = 1;
    DSV4RT_CUDA_TRY(cudaOccupancyMaxActiveClusters(&residency.clusters[i], kernel, &config));
  }
  return residency;
}

template <int kTokens, int kRowTiles>
const Result<TileResidency>& tile_residency() {
  static const Result<TileResidency> residency = ask_tile_residency<kTokens, kRowTiles>();
  return residency;
}

template <int kTokens, int kRowTiles>
Status launch_tile_kernel(const LinearParams& params, int clusters, int cluster_blocks, int shared_bytes,
                          cudaStream_t stream) {
  return launch_pdl(linear_tile_kernel<kTokens, kRowTiles>,
                    {.grid = dim3(static_cast<unsigned>(clusters * cluster_blocks)),
                     .threads = TileShape<kTokens, kRowTiles>::kThreads,
                     .shared_bytes = static_cast<std::size_t>(shared_bytes),
                     .cluster_blocks = static_cast<unsigned>(cluster_blocks)},
                    stream, params);
}

template <int kTokens, int kRowTiles>
const TileVariant& tile_variant() {
  using Shape = TileShape<kTokens, kRowTiles>;
  static const TileVariant variant{.tokens = kTokens,
                                   .row_tiles = kRowTiles,
                                   .input_bytes = Shape::kInputBytes,
                                   .other_bytes = Shape::kBarrierBytes + Shape::kAlignmentBytes,
                                   .sum_bytes = &Shape::sum_bytes,
                                   .residency = &tile_residency<kTokens, kRowTiles>,
                                   .launch = &launch_tile_kernel<kTokens, kRowTiles>};
  return variant;
}

}  // namespace dsv4rt::cuda
