// What blocks that score one token's rows leave each other in device memory: zeros between operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dsv4rt::cuda {

inline constexpr int kRankDigitBits = 12;  // leading bits of a rank (cpu/top_k.h), by which rows are counted first
inline constexpr int kRankDigits = 1 << kRankDigitBits;

struct alignas(16) SelectState {
  std::uint32_t rows_of[kRankDigits];  // scored rows by the first digit of their rank
  std::uint32_t tiles;                 // key tiles whose rows are counted and whose scores are stored
};

// Tokens that a state is planned for, one for every multiprocessor of a large device.
inline constexpr std::int64_t kMostStateTokens = 144;
inline constexpr std::int64_t kSelectStateBytes = kMostStateTokens * std::int64_t{sizeof(SelectState)};

}  // namespace dsv4rt::cuda
