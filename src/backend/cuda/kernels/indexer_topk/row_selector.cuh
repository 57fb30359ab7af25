// Exact top-k of a token's scores by one block, ascending by row, where the rows are counted by the first digit of
// their ranks already: one pass over the scores collects the rows whose digit is the k-th's or above, further digits
// are decided among the collected until few rows share them all, and marks, a bit for every row, give the order. Ties
// go to the lowest row. Instructions that run once cost several times what others do: loops over what is in registers
// are short.
//
// Counts and marks are the same in whatever order threads come, and so is what is chosen.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/indexer_topk/cluster_words.cuh"
#include "backend/cuda/kernels/indexer_topk/params.h"
#include "backend/cuda/kernels/indexer_topk/score_rank.cuh"
#include "backend/cuda/kernels/indexer_topk/select_state.h"

namespace dsv4rt::cuda {

inline constexpr int kSelectedRowBits = 18;
inline constexpr std::int32_t kMostSelectableRows = 1 << kSelectedRowBits;  // rows of a token
inline constexpr int kMostCollected = 3072;  // rows whose first digit is the k-th's or above

inline constexpr int kMostSelectorThreads = 384;
inline constexpr int kSeenScores = 16;  // scores that a thread looks at together

struct CollectedRow {
  std::uint32_t rank;
  std::int32_t row;
};

// Memory of a block. Counts and marks are zero between tokens.
struct SelectorShared {
  alignas(16) std::uint32_t rows_of[kRankDigits];  // counts as in SelectState, of rows that this block has scored
  std::uint32_t chosen[kMostSelectableRows / 32];  // a bit for every row
  CollectedRow collected[kMostCollected];
  alignas(16) float seen[kMostSelectorThreads][kSeenScores + 4];  // so that threads meet in no bank
  std::uint32_t warp_total[32];
  std::uint32_t collected_rows;
  std::uint32_t few_rows;
  std::uint64_t few[kMostComparedRows];  // their keys
  std::uint64_t last_few;                // the key of the last chosen among them
  std::uint32_t digit;                   // the digit found last
  std::uint32_t wanted;                  // rows still to be taken from those that share all digits so far
  std::uint32_t bucket;                  // how many do
};

// By `threads` threads, before a barrier of theirs.
__device__ inline void clear_selector(SelectorShared& shared, int threads) {
  static_assert(offsetof(SelectorShared, collected) % 16 == 0);
  auto* const units = reinterpret_cast<uint4*>(&shared);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(offsetof(SelectorShared, collected) / 16);
       i += threads) {
    units[i] = uint4{};
  }
}

// kThreads threads, the first of their block, whose barrier is sync(); kCluster: all threads of the blocks of a
// cluster, which collect from a part of the rows each, and the first block goes on.
template <int kThreads, bool kCluster, class Sync>
class RowSelector {
 public:
  // scores [rows, at least to a multiple of four], written before sync() by any block: the kernels in front may still
  // run.
  __device__ RowSelector(SelectorShared& shared, const float* scores, std::int32_t rows, const Sync& sync)
      : shared_(shared), scores_(scores), rows_(rows), sync_(sync) {
    if constexpr (kCluster) {
      have_ready(share_.begin);
      have_ready(share_.end);
      have_ready(share_.limit);
    }
  }

  // Writes k < rows row numbers to `chosen`. state: where all the token's rows are counted by their first digits, as
  // these threads see, and zeros afterwards; null: they are counted in the block's own memory.
  __device__ void run(SelectState* state, std::int32_t k, std::int32_t* chosen) {
    if (thread_ == 0) shared_.collected_rows = shared_.few_rows = 0;
    const Share share = share_;
    Scores now;
    Scores next;
    begin(state, [&] {
      fetch(now, share, share.begin + thread_);
      fetch(next, share, share.begin + thread_ + kAhead * kThreads);
    });
    std::uint64_t last = 0;    // the key of the last chosen row
    std::uint64_t digits = 0;  // its digits as far as they are known, which leave `shift` bits
    int shift = kKeyBits;
    auto wanted = static_cast<std::uint32_t>(k);
    std::uint32_t listed = 0;  // rows that are collected; 0: all are looked at
    while (true) {
      find_digit(wanted);
      const bool first = shift == kKeyBits;
      const int left = max(shift - kRankDigitBits, 0);
      digits = digits << (shift - left) | shared_.digit;
      shift = left;
      wanted = shared_.wanted;
      const std::uint32_t bucket = shared_.bucket;
      if (first) {
        listed = static_cast<std::uint32_t>(k) - wanted + bucket;
        if (listed <= kMostCollected) {
          collect(static_cast<std::uint32_t>(digits), share, now, next);
          sync_();
        } else {
          listed = 0;
        }
        if (kCluster && !gather(*state, listed)) return;
      }
      last = digits << shift;
      if (bucket == wanted) break;
      // Those that share the digits so far are counted by the next one, or are few.
      const bool few = bucket <= kMostComparedRows;
      const int next_shift = max(shift - kRankDigitBits, 0);
      const std::uint32_t mask = (1U << (shift - next_shift)) - 1;
      for_rows(listed, [&](std::uint64_t key, std::int32_t) {
        if (key >> shift != digits) return;
        if (few) {
          shared_.few[atomicAdd(&shared_.few_rows, 1U)] = key;
        } else {
          atomicAdd(&shared_.rows_of[static_cast<std::uint32_t>(key >> next_shift) & mask], 1U);
        }
      });
      sync_();
      if (few) {
        last = last_of_few(wanted);
        break;
      }
    }
    for_rows(listed, [&](std::uint64_t key, std::int32_t row) {
      if (key >= last) atomicOr(&shared_.chosen[row / 32], 1U << (row % 32));
    });
    sync_();
    write(chosen);
    sync_();
  }

 private:
  static constexpr int kKeyBits = 32 + kSelectedRowBits;
  static constexpr int kFinders = 8;  // warps that look for a digit
  static constexpr int kFinderDigits = kRankDigits / kFinders;
  static constexpr int kAhead = kSeenScores / 4;  // loads of a thread on their way
  static_assert(kThreads >= 32 * kFinders && kThreads <= kMostSelectorThreads && kThreads % 32 == 0);

  // The key of the wanted-th of the few rows that share all digits so far.
  __device__ std::uint64_t last_of_few(std::uint32_t wanted) {
    const std::uint32_t rows = shared_.few_rows;
    if (static_cast<std::uint32_t>(thread_) < rows) {
      const std::uint64_t own = shared_.few[thread_];
      std::uint32_t place = 1;
#pragma unroll 1
      for (std::uint32_t i = 0; i < rows; ++i) place += shared_.few[i] > own ? 1U : 0U;
      if (place == wanted) shared_.last_few = own;
    }
    sync_();
    return shared_.last_few;
  }

  // The sum over the threads before this one; sync() within.
  __device__ std::uint32_t sum_before(std::uint32_t own) {
    const std::uint32_t in_warp = inclusive_warp_sum(own, lane_);
    if (lane_ == 31) shared_.warp_total[warp_] = in_warp;
    sync_();
    const std::uint32_t total = lane_ < warp_ ? shared_.warp_total[lane_] : 0;
    return __reduce_add_sync(0xffffffffU, total) + in_warp - own;
  }

  // Moves the counts of `state`, if they are there, here. What other blocks have added is not in this one's cache.
  // meanwhile(): asks for what is needed next.
  template <class Meanwhile>
  __device__ void begin(SelectState* state, const Meanwhile& meanwhile) const {
    static_assert(kRankDigits / 4 <= 3 * kThreads);
    const bool apart = kCluster || state != nullptr;
    auto* const from = apart ? reinterpret_cast<uint4*>(state->rows_of) : nullptr;
    uint4 four[3] = {};  // or it would pass for values from before, and be held in registers all along
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int at = thread_ + i * kThreads;
      if (apart && at < kRankDigits / 4) four[i] = __ldcg(from + at);
    }
    meanwhile();
    if (!apart) return;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int at = thread_ + i * kThreads;
      if (at >= kRankDigits / 4) break;
      reinterpret_cast<uint4*>(shared_.rows_of)[at] = four[i];
      if (!kCluster) from[at] = uint4{};  // gather() does so when all blocks have read
    }
    sync_();
  }

  // Brings what the blocks have collected to the first one, which alone goes on. The others stay until all have read
  // how many rows each of them has.
  __device__ bool gather(SelectState& state, std::uint32_t listed) const {
    cluster_arrive();
    cluster_wait();
    const auto block = static_cast<int>(cluster_rank());
    if (block != 0 && listed != 0) {
      const std::uint32_t earlier = lane_ < block ? load_cluster(&shared_.collected_rows, lane_) : 0;
      const std::uint32_t begin = __reduce_add_sync(0xffffffffU, earlier);
#pragma unroll 1
      for (std::uint32_t i = static_cast<std::uint32_t>(thread_); i < shared_.collected_rows; i += kThreads) {
        store_cluster(&shared_.collected[begin + i].rank, 0, shared_.collected[i].rank);
        store_cluster(&shared_.collected[begin + i].row, 0, static_cast<std::uint32_t>(shared_.collected[i].row));
      }
    }
    cluster_arrive();
    if (block == 0) {
#pragma unroll 1
      for (int i = thread_; i < kRankDigits / 4; i += kThreads) reinterpret_cast<uint4*>(state.rows_of)[i] = uint4{};
    }
    cluster_wait();
    return block == 0;
  }

  // Finds the digit of the wanted-th row, counted from the top digit down, and sets the counts to zero. A barrier comes
  // before; there is one after.
  __device__ void find_digit(std::uint32_t wanted) {
    // The first warp has the top digits. A lane reads where others read other banks: the order within a warp's digits
    // counts in one warp alone.
    const int from = kRankDigits - kFinderDigits * (warp_ + 1);
    auto* const fours = reinterpret_cast<uint4*>(shared_.rows_of + from) + lane_;
    if (warp_ < kFinders) {
      std::uint32_t sum = 0;
#pragma unroll
      for (int i = 0; i < kFinderDigits / 128; ++i) sum += sum_of(fours[32 * i]);
      sum = __reduce_add_sync(0xffffffffU, sum);
      if (lane_ == 0) shared_.warp_total[warp_] = sum;
    }
    sync_();
    if (warp_ < kFinders) {
      const std::uint32_t before = __reduce_add_sync(0xffffffffU, lane_ < warp_ ? shared_.warp_total[lane_] : 0);
      if (before < wanted && before + shared_.warp_total[warp_] >= wanted) look_up(from, before, wanted);
#pragma unroll
      for (int i = 0; i < kFinderDigits / 128; ++i) fours[32 * i] = uint4{};
    }
    sync_();
  }
  __device__ static std::uint32_t sum_of(const uint4& four) {
    return (four.x + four.y) + (four.z + four.w);
  }

  // The digit of the wanted-th row is among kFinderDigits from `from` on, `before` rows have ones above. One warp.
  __device__ void look_up(int from, std::uint32_t before, std::uint32_t wanted) {
    constexpr int kLaneDigits = kFinderDigits / 32;
    static_assert(kLaneDigits == 16);
    const int own = from + kLaneDigits * (31 - lane_);  // the first lane has the top ones
    std::uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kLaneDigits / 4; ++i) sum += sum_of(reinterpret_cast<const uint4*>(shared_.rows_of + own)[i]);
    before += inclusive_warp_sum(sum, lane_) - sum;
    const unsigned lanes = __ballot_sync(0xffffffffU, before < wanted && before + sum >= wanted);
    const int lane = __ffs(static_cast<int>(lanes)) - 1;
    before = __shfl_sync(0xffffffffU, before, lane);
    const int digit = __shfl_sync(0xffffffffU, own, lane) + kLaneDigits - 1 - lane_;
    const std::uint32_t count = lane_ < kLaneDigits ? shared_.rows_of[digit] : 0;
    before += inclusive_warp_sum(count, lane_) - count;
    if (lane_ < kLaneDigits && before < wanted && before + count >= wanted) {
      shared_.digit = static_cast<std::uint32_t>(digit);
      shared_.wanted = wanted - before;
      shared_.bucket = count;
    }
    __syncwarp();
  }

  // The fours of scores [begin, end) that the block collects from, of rows below `limit`.
  struct Share {
    std::int32_t begin;
    std::int32_t end;
    std::int32_t limit;
  };
  [[nodiscard]] __device__ Share share_of_block() const {
    Share share{.begin = 0, .end = (rows_ + 3) / 4, .limit = rows_};
    if (kCluster) {
      const auto blocks = static_cast<std::int32_t>(cluster_blocks());
      const std::int32_t each = (share.end + blocks - 1) / blocks;
      share.begin = min(static_cast<std::int32_t>(cluster_rank()) * each, share.end);
      share.end = min(share.begin + each, share.end);
      share.limit = min(4 * share.end, rows_);
    }
    return share;
  }

  struct Scores {
    float4 four[kAhead] = {};  // defined without a condition, like the counts in begin()
  };
  // The fours from number `first` on, kThreads apart.
  __device__ void fetch(Scores& scores, const Share& share, std::int32_t first) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int32_t at = first + i * kThreads;
      if (at < share.end) scores.four[i] = __ldcg(reinterpret_cast<const float4*>(scores_) + at);
    }
  }

  // Collects the rows with this first digit or one above; the thread's first scores are in `now` and `next`.
  __device__ void collect(std::uint32_t digit, const Share& share, Scores& now, Scores& next) {
    // Of the digits below that of -infinity, 7, NaN alone has one: 0.
    const std::uint32_t rank = digit << (32 - kRankDigitBits);
    const float lowest =
        digit <= 7 ? -INFINITY : __uint_as_float((rank & 0x80000000U) != 0 ? rank ^ 0x80000000U : ~rank);
#pragma unroll 1
    for (std::int32_t first = share.begin + thread_; first < share.end; first += kAhead * kThreads) {
      std::uint32_t hits = 0;  // a bit for every score
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        hits |= now.four[i].x >= lowest ? 1U << (4 * i) : 0;
        hits |= now.four[i].y >= lowest ? 2U << (4 * i) : 0;
        hits |= now.four[i].z >= lowest ? 4U << (4 * i) : 0;
        hits |= now.four[i].w >= lowest ? 8U << (4 * i) : 0;
        reinterpret_cast<float4*>(shared_.seen[thread_])[i] = now.four[i];
      }
      if (digit == 0) hits = (1U << (4 * kAhead)) - 1;  // NaN is not less than anything
      now = next;
      fetch(next, share, first + 2 * kAhead * kThreads);
      take_hits(hits, first, share.limit);
    }
  }

  // Bit 4 i + e: row e of the four number `first` + i kThreads, whose scores are among those seen; below `limit`.
  __device__ void take_hits(std::uint32_t hits, std::int32_t first, std::int32_t limit) {
    if (4 * (first + kAhead * kThreads) > limit) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const std::int32_t rows = min(max(limit - 4 * (first + i * kThreads), 0), 4);
        hits &= ~(((0xfU << rows) & 0xfU) << (4 * i));
      }
    }
    if (hits == 0) return;
    std::uint32_t place = atomicAdd(&shared_.collected_rows, static_cast<std::uint32_t>(__popc(hits)));
#pragma unroll 1
    for (; hits != 0; hits &= hits - 1) {
      const int bit = __ffs(static_cast<int>(hits)) - 1;
      shared_.collected[place++] = {rank_of(shared_.seen[thread_][bit]), 4 * (first + bit / 4 * kThreads) + bit % 4};
    }
  }

  // Among rows of equal rank the lower comes first. No two rows have the same key.
  __device__ static std::uint64_t key_of(std::uint32_t rank, std::int32_t row) {
    return std::uint64_t{rank} << kSelectedRowBits | static_cast<std::uint32_t>(kMostSelectableRows - 1 - row);
  }

  // visit(key, row) for the collected rows, or all where none are, as when all scores are equal.
  template <class Visit>
  __device__ void for_rows(std::uint32_t listed, const Visit& visit) const {
#pragma unroll 1
    for (int i = thread_; i < static_cast<int>(listed); i += kThreads) {
      const CollectedRow entry = shared_.collected[i];
      visit(key_of(entry.rank, entry.row), entry.row);
    }
    if (listed != 0) return;
#pragma unroll 1
    for (std::int32_t at = thread_; at < (rows_ + 3) / 4; at += 2 * kThreads) {
      float4 value[2] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (at + i * kThreads < (rows_ + 3) / 4) {
          value[i] = __ldcg(reinterpret_cast<const float4*>(scores_) + at + i * kThreads);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float score[4] = {value[i].x, value[i].y, value[i].z, value[i].w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const std::int32_t row = 4 * (at + i * kThreads) + e;
          if (row < rows_) visit(key_of(rank_of(score[e]), row), row);
        }
      }
    }
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
  Share share_ = share_of_block();
  int thread_ = static_cast<int>(threadIdx.x);
  int warp_ = thread_ / 32;
  int lane_ = thread_ % 32;
};

}  // namespace dsv4rt::cuda
