// Exact top-k of FP32 scores under a total order.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

namespace dsv4rt::cpu {

// Orders as a larger score ranks higher: -0 equals +0, NaN of any kind ranks below -infinity.
constexpr std::uint32_t score_rank(float score) {
  if (score != score) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);  // -0 + 0 = +0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Writes the indices of the `k` best scores to `chosen`, ascending; equal scores: lowest index first.
// 0 < k <= scores.size(). Radix selection: three histograms find the k-th rank, one pass collects.
inline void top_k(std::span<const float> scores, std::int32_t k, std::int32_t* chosen) {
  constexpr std::array<int, 3> kShift = {21, 10, 0};
  constexpr std::array<std::uint32_t, 3> kBuckets = {2048, 2048, 1024};
  std::uint32_t prefix = 0;  // the bits of the k-th rank found so far
  std::uint32_t prefix_mask = 0;
  std::uint32_t wanted = static_cast<std::uint32_t>(k);  // still to be taken among ranks with this prefix
  for (std::size_t pass = 0; pass < kShift.size(); ++pass) {
    std::array<std::uint32_t, 2048> histogram{};
    const std::uint32_t digit_mask = kBuckets[pass] - 1;
    for (const float score : scores) {
      const std::uint32_t rank = score_rank(score);
      if ((rank & prefix_mask) == prefix) ++histogram[(rank >> kShift[pass]) & digit_mask];
    }
    std::uint32_t digit = digit_mask;
    while (histogram[digit] < wanted) wanted -= histogram[digit--];
    prefix |= digit << kShift[pass];
    prefix_mask |= digit_mask << kShift[pass];
  }
  // `prefix` is the k-th rank itself; of its equals the first `wanted` are in.
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const std::uint32_t rank = score_rank(scores[i]);
    if (rank < prefix || (rank == prefix && wanted == 0)) continue;
    if (rank == prefix) --wanted;
    *chosen++ = static_cast<std::int32_t>(i);
  }
}

}  // namespace dsv4rt::cpu
