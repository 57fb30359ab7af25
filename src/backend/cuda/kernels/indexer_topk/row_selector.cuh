// Exact top-k of a token's scores by one block, ascending by row, where the rows are counted by the first digit of
// their ranks already: one pass over the scores collects the rows whose digit is the k-th's or above, further digits
// are decided among the collected, and marks, a bit for every row, give the order. Ties go to the lowest row.
// Instructions that run once cost several times what others do: loops over what is in registers are short.
//
// Counts and marks are the same in whatever order threads come, and so is what is chosen.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "backend/cpu/top_k.h"
#include "backend/cuda/kernels/indexer_topk/select_state.h"

namespace dsv4rt::cuda {

inline constexpr int kSelectedRowBits = 18;
inline constexpr std::int32_t kMostSelectableRows = 1 << kSelectedRowBits;  // rows of a token
inline constexpr int kMostCollected = 3072;  // rows whose first digit is the k-th's or above

struct CollectedRow {
  std::uint32_t rank;
  std::int32_t row;
};

// Memory of a block. Counts and marks are zero between tokens.
struct SelectorShared {
  alignas(16) std::uint32_t rows_of[kRankDigits];  // as in SelectState, of rows that this block has scored
  std::uint32_t chosen[kMostSelectableRows / 32];  // a bit for every row
  CollectedRow collected[kMostCollected];
  std::uint32_t warp_total[32];
  std::uint32_t collected_rows;
  std::uint32_t digit;   // the digit found last
  std::uint32_t wanted;  // rows still to be taken from those that share all digits so far
  std::uint32_t bucket;  // how many do
};

// NaN takes 1, which no number has.
__device__ inline std::uint32_t rank_of(float score) {
  return max(cpu::score_rank(score), 1U);
}
__device__ inline std::uint32_t first_digit(std::uint32_t rank) {
  return rank >> (32 - kRankDigitBits);
}

// kThreads threads, the first of their block, whose barrier is sync().
template <int kThreads, class Sync>
class RowSelector {
 public:
  // scores [rows, at least to a multiple of four], written before sync() by any block.
  __device__ RowSelector(SelectorShared& shared, const float* scores, std::int32_t rows, const Sync& sync)
      : shared_(shared), scores_(scores), rows_(rows), sync_(sync) {}

  // Writes k < rows row numbers to `chosen`. state: where all the token's rows are counted by their first digits, as
  // these threads see; null: in the block's own memory. The counts are set to zero.
  __device__ void run(SelectState* state, std::int32_t k, std::int32_t* chosen) {
    if (thread_ == 0) shared_.collected_rows = 0;
    if (state != nullptr) {
      find_digit<kRankDigits, true>(state->rows_of, static_cast<std::uint32_t>(k));
    } else {
      find_digit<kRankDigits, false>(shared_.rows_of, static_cast<std::uint32_t>(k));
    }
    const std::uint32_t digit = shared_.digit;
    const std::uint32_t listed = static_cast<std::uint32_t>(k) - shared_.wanted + shared_.bucket;
    if (listed <= kMostCollected) {
      collect(digit);
      sync_();
      const auto end = static_cast<int>(listed);
      // What each thread reads here, it alone reads below.
#pragma unroll 1
      for (int i = thread_; i < end; i += kThreads) {
        CollectedRow& entry = shared_.collected[i];
        entry.rank = rank_of(__ldcg(scores_ + entry.row));
      }
      decide(digit, [&](const auto& visit) {
#pragma unroll 1
        for (int i = thread_; i < end; i += kThreads) visit(shared_.collected[i].rank, shared_.collected[i].row);
      });
    } else {
      decide(digit, [&](const auto& visit) { for_scores(visit); });  // as where all scores are equal
    }
    sync_();
    write(chosen);
    sync_();
  }

 private:
  static constexpr int kFinders = 256;  // threads that look for a digit
  static constexpr int kDigitBits = 10;
  static constexpr int kAhead = 8;  // loads of a thread on their way
  static_assert(kThreads >= kFinders && kThreads % 32 == 0 && 4 * kAhead == 32);

  __device__ static std::uint32_t inclusive_sum(std::uint32_t value, int lane) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const std::uint32_t below = __shfl_up_sync(0xffffffffU, value, static_cast<unsigned>(distance));
      if (lane >= distance) value += below;
    }
    return value;
  }

  // The thread's part of a sum over the threads before it; sync() within.
  __device__ std::uint32_t sum_before(std::uint32_t own) {
    const std::uint32_t in_warp = inclusive_sum(own, lane_);
    if (lane_ == 31) shared_.warp_total[warp_] = in_warp;
    sync_();
    std::uint32_t before = in_warp - own;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) before += w < warp_ ? shared_.warp_total[w] : 0;
    return before;
  }

  // Finds the bin in which the wanted-th row lies, counted from the top bin down, and empties the bins. A barrier of
  // the threads comes before; there is one after.
  template <int kBins, bool kGlobal>
  __device__ void find_digit(std::uint32_t* bins, std::uint32_t wanted) {
    constexpr int kFours = kBins / kFinders / 4;
    uint4 four[kFours] = {};  // the thread's, from the top down; the first finder has the top ones
    std::uint32_t sum = 0;
    const int from = kBins - 4 * kFours * (thread_ + 1);
    if (thread_ < kFinders) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const auto* const source = reinterpret_cast<const uint4*>(bins + from) + kFours - 1 - i;
        four[i] = kGlobal ? __ldcg(source) : *source;  // other blocks' sums are not in this one's cache
      }
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        reinterpret_cast<uint4*>(bins + from)[i] = uint4{};
        sum += (four[i].x + four[i].y) + (four[i].z + four[i].w);
      }
    }
    std::uint32_t before = sum_before(sum);
    if (before < wanted && before + sum >= wanted) {
      std::uint32_t digit = static_cast<std::uint32_t>(from) + 4 * kFours;
      const auto look = [&](std::uint32_t count) {
        --digit;
        if (before < wanted && before + count >= wanted) {
          shared_.digit = digit;
          shared_.wanted = wanted - before;
          shared_.bucket = count;
        }
        before += count;
      };
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        look(four[i].w);
        look(four[i].z);
        look(four[i].y);
        look(four[i].x);
      }
    }
    sync_();
  }

  // The least score of this first digit. Of those below that of -infinity, 7, NaN alone has one: 0.
  __device__ static float lowest_of(std::uint32_t digit) {
    const std::uint32_t rank = digit << (32 - kRankDigitBits);
    return digit <= 7 ? -INFINITY : __uint_as_float((rank & 0x80000000U) != 0 ? rank ^ 0x80000000U : ~rank);
  }

  // Collects the rows with this first digit or one above.
  __device__ void collect(std::uint32_t digit) {
    const float lowest = lowest_of(digit);
    const auto* const fours = reinterpret_cast<const float4*>(scores_);
    const std::int32_t end = (rows_ + 3) / 4;
#pragma unroll 1
    for (std::int32_t first = thread_; first < end; first += kAhead * kThreads) {
      float4 value[kAhead] = {};
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const std::int32_t at = first + i * kThreads;
        if (at < end) value[i] = __ldcg(fours + at);  // what other blocks wrote is not in this one's cache
      }
      std::uint32_t hits = 0;  // a bit for every score
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        hits |= value[i].x >= lowest ? 1U << (4 * i) : 0;
        hits |= value[i].y >= lowest ? 2U << (4 * i) : 0;
        hits |= value[i].z >= lowest ? 4U << (4 * i) : 0;
        hits |= value[i].w >= lowest ? 8U << (4 * i) : 0;
      }
      if (digit == 0) hits = ~0U;  // NaN is not less than anything
#pragma unroll 1
      for (; hits != 0; hits &= hits - 1) {
        const int bit = __ffs(static_cast<int>(hits)) - 1;
        const std::int32_t row = 4 * (first + bit / 4 * kThreads) + bit % 4;
        if (row < rows_) shared_.collected[atomicAdd(&shared_.collected_rows, 1U)].row = row;
      }
    }
  }

  // visit(rank, row) for all rows.
  template <class Visit>
  __device__ void for_scores(const Visit& visit) const {
#pragma unroll 4
    for (std::int32_t at = thread_; at < (rows_ + 3) / 4; at += kThreads) {
      const float4 value = __ldcg(reinterpret_cast<const float4*>(scores_) + at);
      visit(rank_of(value.x), 4 * at);
      if (4 * at + 1 < rows_) visit(rank_of(value.y), 4 * at + 1);
      if (4 * at + 2 < rows_) visit(rank_of(value.z), 4 * at + 2);
      if (4 * at + 3 < rows_) visit(rank_of(value.w), 4 * at + 3);
    }
  }

  __device__ void mark(std::int32_t row) const {
    atomicOr(&shared_.chosen[row / 32], 1U << (row % 32));
  }

  // Among rows of equal rank the lower comes first. No two rows have the same key.
  __device__ static std::uint64_t key_of(std::uint32_t rank, std::int32_t row) {
    return std::uint64_t{rank} << kSelectedRowBits | static_cast<std::uint32_t>(kMostSelectableRows - 1 - row);
  }

  // Marks, of the rows that for_each(visit) gives, those whose first digit is above this and the wanted ones of those
  // that share it.
  template <class ForEach>
  __device__ void decide(std::uint32_t digit, const ForEach& for_each) {
    std::uint64_t digits = digit;  // the last wanted row's key as far as it is known
    int shift = 32 + kSelectedRowBits - kRankDigitBits;
    std::uint32_t wanted = shared_.wanted;
    while (shared_.bucket != wanted) {
      const int before = shift;
      shift = max(before - kDigitBits, 0);
      const std::uint32_t mask = (1U << (before - shift)) - 1;
      for_each([&](std::uint32_t rank, std::int32_t row) {
        const std::uint64_t key = key_of(rank, row);
        if (key >> before == digits) atomicAdd(&shared_.rows_of[static_cast<std::uint32_t>(key >> shift) & mask], 1U);
      });
      sync_();
      find_digit<1 << kDigitBits, false>(shared_.rows_of, wanted);
      digits = digits << (before - shift) | shared_.digit;
      wanted = shared_.wanted;
    }
    for_each([&](std::uint32_t rank, std::int32_t row) {
      if (key_of(rank, row) >> shift >= digits) mark(row);
    });
  }

  // The marked rows in order; takes the marks away.
  __device__ void write(std::int32_t* chosen) {
    const std::int32_t words = (rows_ + 31) / 32;
    const std::int32_t share = (words + kThreads - 1) / kThreads;
    const std::int32_t begin = min(thread_ * share, words);
    const std::int32_t end = min(begin + share, words);
    std::uint32_t own = 0;
#pragma unroll 1
    for (std::int32_t i = begin; i < end; ++i) own += static_cast<std::uint32_t>(__popc(shared_.chosen[i]));
    chosen += sum_before(own);
#pragma unroll 1
    for (std::int32_t i = begin; i < end; ++i) {
      std::uint32_t bits = shared_.chosen[i];
      if (bits == 0) continue;
      shared_.chosen[i] = 0;
      for (; bits != 0; bits &= bits - 1) *chosen++ = i * 32 + __ffs(static_cast<int>(bits)) - 1;
    }
  }

  SelectorShared& shared_;
  const float* scores_;
  std::int32_t rows_;
  const Sync& sync_;
  int thread_ = static_cast<int>(threadIdx.x);
  int warp_ = thread_ / 32;
  int lane_ = thread_ % 32;
};

}  // namespace dsv4rt::cuda
