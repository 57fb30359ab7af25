// Launches of the tile kernel.
#pragma once

#include <array>
#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/linear_dispatch.h"

namespace dsv4rt::cuda {

class CudaDevice;

// Any number of clusters.
Status launch_tiles(const CudaDevice& device, const LinearParams& p, const LinearPlan& plan, cudaStream_t stream);

// How many clusters of each variant the device runs at once, a block a multiprocessor. Kept by the device.
Status ask_tile_clusters(const CudaDevice& device, std::array<int, kTileVariants.size()>& clusters);

}  // namespace dsv4rt::cuda
