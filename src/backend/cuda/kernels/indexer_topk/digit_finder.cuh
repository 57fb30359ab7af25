// Which digit the ranks of the last wanted rows have, from counts of rows by that digit, for threads of one block.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/indexer_topk/select_state.h"

namespace dsv4rt::cuda {

// Counts lie where threads that read sixteen neighbours each meet in no bank.
inline constexpr int kDigitWords = kRankDigits / 16 * 20;
__host__ __device__ constexpr std::uint32_t digit_word(std::uint32_t digit) {
  return digit + digit / 16 * 4;
}

// Memory of a block.
struct DigitCounts {
  alignas(16) std::uint32_t rows_of[kDigitWords];  // rows by a digit, at digit_word(); zeros while nobody counts
  std::uint32_t warp_total[32];
  std::uint32_t digit;   // the digit found last
  std::uint32_t wanted;  // rows still to be taken from those that share all digits so far
  std::uint32_t bucket;  // how many do
};

// By `threads` threads, before a barrier of theirs.
__device__ inline void clear_counts(DigitCounts& counts, int threads) {
  auto* const units = reinterpret_cast<uint4*>(counts.rows_of);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kDigitWords / 4; i += threads) units[i] = uint4{};
}

// kThreads threads, the first of their block, whose barrier is sync().
template <int kThreads, class Sync>
class DigitFinder {
 public:
  static constexpr int kFinders = kRankDigits / 16;  // threads that look for a digit
  static_assert(kThreads >= kFinders && kThreads % 32 == 0 && kFinders % 32 == 0);

  // A finder's sixteen digits, by four, the top ones last; the first thread has the top ones of all.
  using Own = uint4[4];

  __device__ DigitFinder(DigitCounts& shared, const Sync& sync) : shared_(shared), sync_(sync) {}

  __device__ void synchronize() const { sync_(); }
  __device__ void count(std::uint32_t digit) const { atomicAdd(&shared_.rows_of[digit_word(digit)], 1U); }

  // A finder's counts, after a barrier; leaves zeros.
  __device__ void take(Own& own) const {
    if (thread_ >= kFinders) return;
    auto* const from = reinterpret_cast<uint4*>(shared_.rows_of + digit_word(first_own()));
#pragma unroll
    for (int i = 0; i < 4; ++i) own[i] = from[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) from[i] = uint4{};
  }

  // Finds the digit of the wanted-th row, counted from the top digit down. Two barriers, the second after all is
  // written.
  __device__ void find(const Own& counts, std::uint32_t wanted) const {
    std::uint32_t sum[4] = {};
    std::uint32_t own = 0;
    std::uint32_t before = 0;
    if (thread_ < kFinders) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[i] = (counts[i].x + counts[i].y) + (counts[i].z + counts[i].w);
        own += sum[i];
      }
      before = inclusive_warp_sum(own, lane_);
      if (lane_ == 31) shared_.warp_total[warp_] = before;
      before -= own;
    }
    sync_();
    if (thread_ < kFinders) {
      before += __reduce_add_sync(0xffffffffU, lane_ < warp_ ? shared_.warp_total[lane_] : 0);
      if (before < wanted && before + own >= wanted) look_up(counts, sum, wanted - before);
    }
    sync_();
  }

  // The sum over the threads before this one, and over all; a barrier within.
  __device__ std::uint32_t sum_before(std::uint32_t own, std::uint32_t& total) const {
    const std::uint32_t in_warp = inclusive_warp_sum(own, lane_);
    if (lane_ == 31) shared_.warp_total[warp_] = in_warp;
    sync_();
    const std::uint32_t of_warp = lane_ < kThreads / 32 ? shared_.warp_total[lane_] : 0;
    total = __reduce_add_sync(0xffffffffU, of_warp);
    return __reduce_add_sync(0xffffffffU, lane_ < warp_ ? of_warp : 0) + in_warp - own;
  }

 private:
  [[nodiscard]] __device__ std::uint32_t first_own() const {
    return static_cast<std::uint32_t>(kRankDigits - 16 * (thread_ + 1));
  }

  // The digit is one of the thread's; `left` rows are wanted from its digits.
  __device__ void look_up(const Own& counts, const std::uint32_t (&sum)[4], std::uint32_t left) const {
    std::uint32_t digit = first_own() + 12;
    uint4 four = counts[3];
    std::uint32_t in_four = sum[3];
#pragma unroll
    for (int i = 2; i >= 0; --i) {
      if (left > in_four) left -= in_four, in_four = sum[i], four = counts[i], digit -= 4;
    }
    std::uint32_t count = four.w;
    digit += 3;
    if (left > count) left -= count, count = four.z, --digit;
    if (left > count) left -= count, count = four.y, --digit;
    if (left > count) left -= count, count = four.x, --digit;
    shared_.digit = digit;
    shared_.wanted = left;
    shared_.bucket = count;
  }

  DigitCounts& shared_;
  const Sync& sync_;
  int thread_ = static_cast<int>(threadIdx.x);
  int warp_ = thread_ / 32;
  int lane_ = thread_ % 32;
};

}  // namespace dsv4rt::cuda
