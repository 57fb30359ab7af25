#include "backend/cuda/device/cuda_device.h"

#include <algorithm>
#include <span>
#include <string>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/device/current_device.h"
#include "backend/cuda/device/kernel_image.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Result<std::unique_ptr<CudaDevice>> CudaDevice::create(int ordinal, DeviceDriver& driver) {
  DeviceFacts facts{.ordinal = ordinal};
  DSV4RT_CUDA_TRY(driver.attribute(ordinal, cudaDevAttrComputeCapabilityMajor, facts.compute_major));
  DSV4RT_CUDA_TRY(driver.attribute(ordinal, cudaDevAttrComputeCapabilityMinor, facts.compute_minor));
  DSV4RT_CUDA_TRY(driver.attribute(ordinal, cudaDevAttrMultiProcessorCount, facts.multiprocessors));
  DSV4RT_CUDA_TRY(driver.attribute(ordinal, cudaDevAttrMaxSharedMemoryPerBlockOptin, facts.block_shared_bytes));
  DSV4RT_CUDA_TRY(driver.attribute(ordinal, cudaDevAttrMaxSharedMemoryPerMultiprocessor, facts.sm_shared_bytes));
  DSV4RT_CUDA_TRY(driver.attribute(ordinal, cudaDevAttrReservedSharedMemoryPerBlock, facts.reserved_shared_bytes));
  const CurrentDevice current(ordinal, driver);
  DSV4RT_RETURN_IF_ERROR(current.status());
  DSV4RT_ASSIGN_OR_RETURN(facts.has_sm90a, runs_sm90a_code(driver));
  return std::make_unique<CudaDevice>(facts, driver);
}

Status CudaDevice::prepare(const void* kernel, std::size_t dynamic_shared_bytes) const {
  const std::scoped_lock lock(mutex_);
  return prepare_locked(kernel, dynamic_shared_bytes);
}

Status CudaDevice::prepare_locked(const void* kernel, std::size_t bytes) const {
  if (bytes > static_cast<std::size_t>(facts_.block_shared_bytes)) {
    return {StatusCode::kUnsupported, "a kernel needs " + std::to_string(bytes) +
                                          " B of shared memory for a block; device " + std::to_string(facts_.ordinal) +
                                          " has " + std::to_string(facts_.block_shared_bytes) + " B"};
  }
  const auto kept = std::span(prepared_).first(prepared_count_);
  const auto found = std::find_if(kept.begin(), kept.end(), [&](const Prepared& one) { return one.kernel == kernel; });
  if (found != kept.end() && found->bytes >= bytes) return {};
  DSV4RT_CUDA_TRY(driver_.allow_shared_bytes(kernel, static_cast<int>(bytes)));
  if (found != kept.end()) {
    found->bytes = bytes;
  } else if (prepared_count_ < kMostKept) {
    prepared_[prepared_count_++] = {.kernel = kernel, .bytes = bytes};
  }
  return {};
}

Result<int> CudaDevice::clusters_at_once(const void* kernel, int cluster_blocks, int threads,
                                         std::size_t shared_bytes) const {
  const std::scoped_lock lock(mutex_);
  for (const Clusters& one : std::span(clusters_).first(clusters_count_)) {
    if (one.kernel == kernel && one.blocks == cluster_blocks && one.threads == threads &&
        one.shared_bytes == shared_bytes) {
      return one.at_once;
    }
  }
  DSV4RT_RETURN_IF_ERROR(prepare_locked(kernel, shared_bytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(cluster_blocks), 1, 1};
  cudaLaunchConfig_t config{};
  // A grid that fills the device: the answer is the device's limit, not the grid's.
  config.gridDim = dim3(static_cast<unsigned>(facts_.multiprocessors * cluster_blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int at_once = 0;
  DSV4RT_CUDA_TRY(driver_.active_clusters(kernel, config, at_once));
  if (clusters_count_ < kMostKept) {
    clusters_[clusters_count_++] = {.kernel = kernel,
                                    .blocks = cluster_blocks,
                                    .threads = threads,
                                    .shared_bytes = shared_bytes,
                                    .at_once = at_once};
  }
  return at_once;
}

}  // namespace dsv4rt::cuda
