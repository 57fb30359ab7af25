// What the kernels between layers take: tables packed into kernel parameters, so that a launch needs no device copy of
// a host array (regions: copy_regions.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kMoveThreads = 256;

// Blocks of threads for `bytes`, each thread moving a few units of 16 bytes.
inline unsigned move_shares(std::int64_t bytes, std::int64_t units_per_thread) {
  constexpr std::int64_t kMostShares = 32;
  const std::int64_t bytes_per_share = kMoveThreads * 16 * units_per_thread;
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((bytes + bytes_per_share - 1) / bytes_per_share, 1, kMostShares));
}

inline constexpr int kTablesPerLaunch = 64;

// Pools [first, first + count) of the cache.
struct TableChunk {
  CacheTable tables[kTablesPerLaunch];
  std::int32_t first = 0;
  std::int32_t count = 0;
};

// Kernel parameters are 4 KiB on every toolkit and device that this code is built for.
static_assert(sizeof(TableChunk) + 64 <= 4096);

}  // namespace dsv4rt::cuda
