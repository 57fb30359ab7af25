// Memory that communicators take for their exchanges, for them and for plans.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dsv4rt {

// Over MPI: bytes of a rank that one collective moves; longer ones go in parts.
inline constexpr std::int64_t kMpiPartBytes = std::int64_t{1} << 20;
constexpr std::int64_t mpi_exchange_bytes(std::int32_t ranks) {
  return kMpiPartBytes * ranks;
}

// Over NCCL: FP32 terms of a rank that are added at a time, 16 MiB: 1024 tokens of 4096 values. Without sums, short
// parts of a rank that a share packs.
inline constexpr std::int64_t kNcclPartElements = std::int64_t{4} << 20;
inline constexpr std::int64_t kNcclShareBytes = std::int64_t{1} << 20;
constexpr std::int64_t nccl_exchange_bytes(std::int64_t elements, std::int32_t ranks) {
  if (elements == 0) return ranks > 1 ? ranks * kNcclShareBytes : 0;
  return std::min(elements, kNcclPartElements) * ranks * std::int64_t{sizeof(float)};
}

}  // namespace dsv4rt
