// What the kernels between layers take: tables and regions packed into kernel parameters, so that a launch
// needs no device copy of a host array.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kTablesPerLaunch = 64;

// Pools [first, first + count) of the cache.
struct TableChunk {
  CacheTable tables[kTablesPerLaunch];
  std::int32_t first = 0;
  std::int32_t count = 0;
};

inline constexpr int kRegionsPerLaunch = 128;

struct CopyRegion {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::int64_t bytes = 0;
};

struct RegionChunk {
  CopyRegion regions[kRegionsPerLaunch];
};

// Kernel parameters are 4 KiB on every toolkit and device that this code is built for.
static_assert(sizeof(TableChunk) + 64 <= 4096 && sizeof(RegionChunk) <= 4096);

}  // namespace dsv4rt::cuda
