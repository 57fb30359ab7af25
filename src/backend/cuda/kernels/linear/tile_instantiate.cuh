// One variant of the tile kernel; a small translation unit each keeps rebuilds short.
#pragma once

#include <algorithm>

#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/tile_kernel.cuh"
#include "backend/cuda/kernels/linear/tile_variant.h"
#include "base/try.h"

namespace dsv4rt::cuda {

// What the device runs of a variant at once.
struct TileResidency {
  int shared_bytes = 0;  // of a block
  int blocks = 0;
  int clusters = 0;  // of kSegments blocks
};

template <int kTokens, int kRowTiles>
Result<TileResidency> tile_residency() {
  using Shape = TileShape<kTokens, kRowTiles>;
  int device = 0;
  int sms = 0;
  int sm_bytes = 0;
  int reserved_bytes = 0;
  DSV4RT_CUDA_TRY(cudaGetDevice(&device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&sm_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&reserved_bytes, cudaDevAttrReservedSharedMemoryPerBlock, device));
  TileResidency residency;
  residency.shared_bytes = sm_bytes / Shape::kBlocksPerSm - reserved_bytes;
  residency.blocks = sms * Shape::kBlocksPerSm;
  const auto kernel = linear_tile_kernel<kTokens, kRowTiles>;
  DSV4RT_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, residency.shared_bytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kSegments, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(residency.blocks / kSegments * kSegments));
  config.blockDim = dim3(Shape::kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(residency.shared_bytes);
  config.attrs = &cluster;
  config.numAttrs = 1;
  DSV4RT_CUDA_TRY(cudaOccupancyMaxActiveClusters(&residency.clusters, kernel, &config));
  return residency;
}

template <int kTokens, int kRowTiles>
Status launch_tile_kernel(TileParams& params, cudaStream_t stream) {
  using Shape = TileShape<kTokens, kRowTiles>;
  // The same on every device of a process.
  static const Result<TileResidency> residency = tile_residency<kTokens, kRowTiles>();
  if (!residency.ok()) return residency.status();
  const TileResidency& device = *residency;

  // Rounds of segments that the busiest block sums.
  const auto rounds = [&](int slots) { return (params.items + slots - 1) / slots; };
  const bool clustered =
      params.segments == kSegments && device.clusters > 0 && rounds(device.clusters) < kSegments * rounds(device.blocks);
  const int cluster_blocks = clustered ? kSegments : 1;
  const int clusters = std::min(params.items, clustered ? device.clusters : device.blocks);
  params.stages = std::min((device.shared_bytes - Shape::kFixedBytes) / (params.stage_bytes + Shape::kScaleBytes),
                           kMaxStages);
  return launch_pdl(linear_tile_kernel<kTokens, kRowTiles>,
                    {.grid = dim3(static_cast<unsigned>(clusters * cluster_blocks)),
                     .threads = Shape::kThreads,
                     .shared_bytes = static_cast<std::size_t>(device.shared_bytes),
                     .cluster_blocks = static_cast<unsigned>(cluster_blocks)},
                    stream, params);
}

}  // namespace dsv4rt::cuda

#define DSV4RT_LINEAR_TILE_VARIANT(TOKENS, ROW_TILES)                      \
  template <>                                                              \
  const TileVariant& tile_variant<TOKENS>() {                              \
    static const TileVariant variant{                                      \
        .tokens = TOKENS,                                                  \
        .row_tiles = ROW_TILES,                                            \
        .input_bytes = TileShape<TOKENS, ROW_TILES>::kInputBytes,          \
        .launch = &launch_tile_kernel<TOKENS, ROW_TILES>};                 \
    return variant;                                                        \
  }                                                                        \
  static_assert(TOKENS % 8 == 0)
