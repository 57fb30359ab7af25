#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/cache_moves/copy_regions.h"
#include "backend/cuda/kernels/cache_moves/params.h"
#include "backend/cuda/kernels/common/copy_bytes.cuh"

namespace dsv4rt::cuda {
namespace {

// Grid: (shares of a region, regions).
__global__ __launch_bounds__(kMoveThreads) void copy_regions_kernel(const __grid_constant__ RegionChunk chunk) {
  const CopyRegion& region = chunk.regions[blockIdx.y];
  copy_bytes(region.to, region.from, region.bytes, std::int64_t{blockIdx.x} * kMoveThreads + threadIdx.x,
             std::int64_t{gridDim.x} * kMoveThreads);
}

}  // namespace

Status RegionCopier::flush() {
  if (count_ == 0) return {};
  const dim3 grid(move_shares(largest_bytes_ * 16 / unit_bytes_, 4), static_cast<unsigned>(count_));
  copy_regions_kernel<<<grid, kMoveThreads, 0, stream_>>>(chunk_);
  count_ = 0;
  largest_bytes_ = 0;
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

}  // namespace dsv4rt::cuda
