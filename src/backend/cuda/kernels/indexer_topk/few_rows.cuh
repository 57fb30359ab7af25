// Exact top-k of a token's scores by one block, ascending by row, where they are so few that threads keep all ranks in
// registers: digits are decided one after the other, and sums over threads give each chosen row its place. Ties go to
// the lowest row.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/indexer_topk/digit_finder.cuh"
#include "backend/cuda/kernels/indexer_topk/params.h"
#include "backend/cuda/kernels/indexer_topk/score_rank.cuh"

namespace dsv4rt::cuda {

// kThreads threads, the first of their block, whose barrier is sync().
template <int kThreads, class Sync>
class FewRowSelector {
 public:
  // scores [rows, at least to a multiple of four] in the block's shared memory, complete; counts are zeros.
  __device__ FewRowSelector(DigitCounts& counts, const Sync& sync) : shared_(counts), finder_(counts, sync) {}

  // Writes k < rows row numbers to `chosen`. Leaves zeros in the counts.
  __device__ void run(const float* scores, std::int32_t rows, std::int32_t k, std::int32_t* chosen) const {
    std::uint32_t rank[kGroups * 4];  // the ranks of the thread's rows; 0 for rows that the token does not see
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const std::int32_t row = row_of(g);
      const float4 four = row < rows ? *reinterpret_cast<const float4*>(scores + row) : float4{};
      const float score[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        rank[4 * g + e] = row + e < rows ? rank_of(score[e]) : 0;
        if (row + e < rows) finder_.count(first_digit(rank[4 * g + e]));
      }
    }
    std::uint32_t digits = 0;  // the last wanted row's rank as far as it is known, and how many of its bits are not
    int shift = 32;
    while (true) {
      finder_.synchronize();
      typename Finder::Own counts;
      finder_.take(counts);
      finder_.find(counts, shift == 32 ? static_cast<std::uint32_t>(k) : shared_.wanted);
      const int before = shift;
      shift = max(before - kRankDigitBits, 0);
      digits = digits << (before - shift) | shared_.digit;
      if (shared_.bucket == shared_.wanted || shift == 0) break;
      // Counts those that share the digits so far by the next one.
      const int next = max(shift - kRankDigitBits, 0);
      const std::uint32_t mask = (1U << (shift - next)) - 1;
#pragma unroll
      for (int i = 0; i < 4 * kGroups; ++i) {
        if (rank[i] >> shift == digits) finder_.count(rank[i] >> next & mask);
      }
    }
    std::uint32_t own = 0;  // a bit for every row of the thread
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i) own |= rank[i] >> shift >= digits ? 1U << i : 0;
    if (shared_.bucket != shared_.wanted) {  // some of the rows that equal the last one
      std::uint32_t equal = 0;
#pragma unroll
      for (int i = 0; i < 4 * kGroups; ++i) equal |= rank[i] == digits ? 1U << i : 0;
      std::uint32_t place[kGroups];
      places(equal, place);
#pragma unroll
      for (int i = 0; i < 4 * kGroups; ++i) {
        if ((equal >> i & 1U) != 0 && place[i / 4]++ >= shared_.wanted) own &= ~(1U << i);
      }
      finder_.synchronize();
    }
    std::uint32_t place[kGroups];
    places(own, place);
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i) {
      if ((own >> i & 1U) != 0) chosen[place[i / 4]++] = row_of(i / 4) + i % 4;
    }
  }

 private:
  using Finder = DigitFinder<kThreads, Sync>;
  // Groups of rows, of which every thread has four.
  static constexpr int kGroups = (kMostFewRows / 4 + kThreads - 1) / kThreads;
  static_assert(kGroups <= 2 && kMostFewRows < 1 << 16);

  __device__ static std::int32_t row_of(int group) {
    return 4 * (group * kThreads + static_cast<std::int32_t>(threadIdx.x));
  }

  // For each group, how many rows whose bits are set come before the thread's in it. A barrier within.
  __device__ void places(std::uint32_t bits, std::uint32_t (&place)[kGroups]) const {
    std::uint32_t own = 0;  // sixteen bits for every group
#pragma unroll
    for (int g = 0; g < kGroups; ++g) own |= static_cast<std::uint32_t>(__popc(bits >> (4 * g) & 0xfU)) << (16 * g);
    std::uint32_t total;
    const std::uint32_t before = finder_.sum_before(own, total);
    place[0] = before & 0xffffU;
    if constexpr (kGroups == 2) place[1] = (before >> 16) + (total & 0xffffU);
  }

  DigitCounts& shared_;
  Finder finder_;
};

}  // namespace dsv4rt::cuda
