// Copies of many regions of device memory in few launches: their addresses are kernel parameters.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>

#include "base/try.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

inline constexpr int kRegionsPerLaunch = 128;

struct CopyRegion {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::int64_t bytes = 0;
};

struct RegionChunk {
  CopyRegion regions[kRegionsPerLaunch];
};
static_assert(sizeof(RegionChunk) <= 4096);  // what kernel parameters are on every toolkit and device

// Collects regions and launches whenever the kernel parameters are full. Regions may begin anywhere and do not overlap.
// The device is current.
class RegionCopier {
 public:
  // unit_bytes: what a thread moves at once. Regions that are not aligned to 16 bytes need more threads.
  explicit RegionCopier(cudaStream_t stream, std::int64_t unit_bytes = 16) : stream_(stream), unit_bytes_(unit_bytes) {}

  Status add(std::byte* to, const std::byte* from, std::int64_t bytes) {
    if (bytes == 0) return {};
    chunk_.regions[count_++] = {.to = to, .from = from, .bytes = bytes};
    largest_bytes_ = std::max(largest_bytes_, bytes);
    return count_ == kRegionsPerLaunch ? flush() : Status{};
  }
  Status flush();

 private:
  cudaStream_t stream_;
  std::int64_t unit_bytes_;
  RegionChunk chunk_;
  int count_ = 0;
  std::int64_t largest_bytes_ = 0;
};

inline Status copy_regions(std::span<const CopyRegion> regions, cudaStream_t stream) {
  RegionCopier copier(stream);
  for (const CopyRegion& region : regions) DSV4RT_RETURN_IF_ERROR(copier.add(region.to, region.from, region.bytes));
  return copier.flush();
}

}  // namespace dsv4rt::cuda
