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

// Tokens that a state is planned for, two for every multiprocessor of a large device.
inline constexpr std::int64_t kMostStateTokens = 288;
inline constexpr std::int64_t kSelectStateBytes = kMostStateTokens * std::int64_t{sizeof(SelectState)};

// How scratch memory of so many bytes divides: states at its end, aligned as they are, unless operations would have
// less than they.
struct ScratchParts {
  std::size_t operation_bytes = 0;  // from the start on
  std::size_t zero_bytes = 0;       // behind them: zero between operations
};
constexpr ScratchParts scratch_parts(std::size_t bytes) {
  constexpr auto kZeros = static_cast<std::size_t>(kSelectStateBytes);
  if (bytes < 2 * kZeros) return {.operation_bytes = bytes, .zero_bytes = 0};
  return {.operation_bytes = (bytes - kZeros) / alignof(SelectState) * alignof(SelectState), .zero_bytes = kZeros};
}
// The bytes of which scratch_parts() leaves operations as many as they need, and states theirs.
constexpr std::int64_t with_states(std::int64_t operation_bytes) {
  constexpr auto kUnit = std::int64_t{alignof(SelectState)};
  const std::int64_t operations = operation_bytes > kSelectStateBytes ? operation_bytes : kSelectStateBytes;
  return (operations + kUnit - 1) / kUnit * kUnit + kSelectStateBytes;
}

}  // namespace dsv4rt::cuda
