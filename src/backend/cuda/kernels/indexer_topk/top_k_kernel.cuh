// Exact top-k of a token's scores, ascending by row: radix selection of the k-th rank, then one ordered pass
// that writes the rows above it and the lowest of those that equal it.
//
// A cluster of blocks takes a token; each of its warps owns a contiguous segment of the rows. A histogram of
// the first digit, summed over the blocks where it is read, finds the ranks that share the k-th's; as a rule
// they are few, every block lists them all and finds the rest on its own. Sums of integers and exact choices:
// the number of blocks and of threads changes nothing. A lane keeps the ranks of its first rows in registers and reads
// those of later rows again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/top_k.h"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/indexer_topk/cluster_words.cuh"
#include "backend/cuda/kernels/indexer_topk/params.h"
#include "backend/cuda/kernels/indexer_topk/select_all.cuh"

namespace dsv4rt::cuda {

inline constexpr int kMostTopKBlocks = 8;
inline constexpr int kQuadRows = 128;  // rows of one float4 of every lane
inline constexpr int kDigitBits = kRankDigitBits;
inline constexpr int kFirstShift = 32 - kDigitBits;
inline constexpr int kDigitBins = 1 << kDigitBits;

struct Candidate {
  std::uint32_t rank;
  std::int32_t row;
};

// kAlone: for blocks without a cluster, of which many share a multiprocessor.
template <int kThreads, bool kAlone>
struct TopKShared {
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kHistograms = kAlone ? 1 : 2;
  static constexpr std::uint32_t kMostListed = kAlone ? 1024 : 2048;  // rows that share the first digit

  union {
    // Counts of rows by one digit of their ranks; passes take turns where there are two.
    alignas(16) std::uint32_t histogram[kHistograms][kDigitBins];
    Candidate listed[kMostListed];  // the cluster's candidates, once the first histogram has been read
  };
  // Further digits of listed rows are counted in the second one.
  static_assert(kAlone || sizeof(listed) <= sizeof(histogram[0]));
  Candidate own[kMostListed];        // the block's candidates
  std::uint32_t group[2][kThreads];  // sums of kGroupBins bins, the top ones first
  std::uint32_t warp_total[kWarps];  // each warp's part of a sum over the block
  std::uint32_t warp_above[kWarps];  // rows of the warp above the k-th rank, or its first digit
  std::uint32_t warp_equal[kWarps];  // rows of the warp at the k-th rank
  std::uint32_t block_above;
  std::uint32_t block_equal;
  std::uint32_t block_candidates;
  std::uint32_t found_group;
  std::uint32_t before_group;  // rows above the found group
  std::uint32_t digit;         // digit of the k-th rank that was found last
  std::uint32_t wanted;        // rows still to be taken from those that share its digits so far
  std::uint32_t bucket;        // how many do
};

// The k-th rank as far as it decides: rows whose rank, shifted, is above `digits` are in, and the first
// `wanted` of those that equal it.
struct Threshold {
  std::uint32_t digits;
  int shift;
  std::uint32_t wanted;

  // Above in the upper half, equal in the lower.
  [[nodiscard]] __device__ std::uint32_t mark(std::uint32_t rank) const {
    const std::uint32_t own = rank >> shift;
    return own > digits ? 0x10000U : own == digits ? 1U : 0U;
  }
  [[nodiscard]] __device__ std::uint32_t marks(const std::uint32_t (&rank)[4]) const {
    return mark(rank[0]) + mark(rank[1]) + mark(rank[2]) + mark(rank[3]);
  }
};

// A block's rows [begin, end) of a token; blocks of a cluster follow one another, none has more than `most`.
struct TopKRows {
  std::int32_t begin;
  std::int32_t end;
  std::int32_t most;
};

// The kThreads threads of every block of a cluster; a lane keeps kHeldQuads times four ranks.
template <int kThreads, int kHeldQuads, bool kAlone>
class TopKBlock {
 public:
  using Shared = TopKShared<kThreads, kAlone>;

  // scores [row] in global memory.
  __device__ TopKBlock(const float* scores, const TopKRows& rows, Shared& shared)
      : scores_(scores), shared_(shared), blocks_(kAlone ? 1 : static_cast<int>(cluster_blocks())) {
    const std::int32_t warp_rows = (rows.most + kWarps * kQuadRows - 1) / (kWarps * kQuadRows) * kQuadRows;
    begin_ = min(rows.begin + warp_ * warp_rows, rows.end);
    end_ = min(begin_ + warp_rows, rows.end);
  }

  // Writes k < rows row numbers to `chosen`.
  __device__ void run(std::int32_t k, std::int32_t* chosen) {
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i) load_quad(begin_ + i * kQuadRows + 4 * lane_, held_[i]);
    clear(shared_.histogram[0]);
    if (thread_ == 0) shared_.block_candidates = 0;
    sync();
    for_quads([&](std::int32_t, const std::uint32_t(&rank)[4]) {
#pragma unroll
      for (int e = 0; e < 4; ++e) atomicAdd(&shared_.histogram[0][rank[e] >> kFirstShift], 1U);
    });
    find_digit(shared_.histogram[0], shared_.group[0], static_cast<std::uint32_t>(k), blocks_);
    Threshold threshold{shared_.digit, kFirstShift, shared_.wanted};
    if (shared_.bucket <= Shared::kMostListed) {
      refine_listed(threshold, chosen);
    } else {
      refine_all(threshold, chosen);
    }
    cluster_wait();  // no other block reads this one's memory any more
  }

 private:
  static constexpr int kWarps = Shared::kWarps;
  static constexpr int kHistograms = Shared::kHistograms;
  static constexpr int kGroupBins = kDigitBins / kThreads;

  static __device__ void sync() {
    __syncthreads();
  }

  // Ranks of four rows from `row` on. NaN takes 1, which no number has, and what lies past the end 0: k rows
  // and more precede it.
  __device__ void load_quad(std::int32_t row, std::uint32_t (&rank)[4]) const {
    float4 value{};
    if (row < end_) value = *reinterpret_cast<const float4*>(scores_ + row);
    rank[0] = row < end_ ? max(cpu::score_rank(value.x), 1U) : 0;
    rank[1] = row + 1 < end_ ? max(cpu::score_rank(value.y), 1U) : 0;
    rank[2] = row + 2 < end_ ? max(cpu::score_rank(value.z), 1U) : 0;
    rank[3] = row + 3 < end_ ? max(cpu::score_rank(value.w), 1U) : 0;
  }

  // visit(first row, ranks) for all of the lane's quads, in order; the lanes of a warp make the same calls.
  template <class Visit>
  __device__ void for_quads(const Visit& visit) const {
    std::int32_t row = begin_ + 4 * lane_;
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i, row += kQuadRows) {
      if (row - 4 * lane_ < end_) visit(row, held_[i]);
    }
#pragma unroll 1
    for (; row - 4 * lane_ < end_; row += kQuadRows) {
      std::uint32_t rank[4];
      load_quad(row, rank);
      visit(row, rank);
    }
  }

  __device__ void clear(std::uint32_t (&histogram)[kDigitBins]) const {
    auto* const bins = reinterpret_cast<uint4*>(histogram);
#pragma unroll
    for (int i = 0; i < kDigitBins / 4 / kThreads; ++i) bins[thread_ + i * kThreads] = uint4{};
  }

  // Sums the histograms of the first `blocks` blocks and finds the bin in which the wanted-th row lies, counted from
  // the top bin down. Synchronizes before and after; across the cluster if there is more than one block.
  __device__ void find_digit(const std::uint32_t (&histogram)[kDigitBins], std::uint32_t (&group)[kThreads],
                             std::uint32_t wanted, int blocks) {
    sync();
    const auto* const bins = reinterpret_cast<const uint4*>(histogram + kDigitBins - kGroupBins * (thread_ + 1));
    std::uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kGroupBins / 4; ++i) {
      const uint4 four = bins[i];
      sum += (four.x + four.y) + (four.z + four.w);
    }
    if (blocks > 1) {
      group[thread_] = sum;
      cluster_arrive();
      cluster_wait();
      sum = sum_blocks(&group[thread_], blocks);
    }
    const std::uint32_t in_warp = inclusive_warp_sum(sum, lane_);
    if (lane_ == 31) shared_.warp_total[warp_] = in_warp;
    sync();
    std::uint32_t before = in_warp - sum;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) before += w < warp_ ? shared_.warp_total[w] : 0;
    // One warp finds it and goes on to the bin.
    const bool found = before < wanted && before + sum >= wanted;
    const unsigned lanes = __ballot_sync(0xffffffffU, found);
    if (lanes != 0) {
      const int lane = __ffs(static_cast<int>(lanes)) - 1;
      find_bin(histogram, warp_ * 32 + lane, __shfl_sync(0xffffffffU, before, lane), wanted, blocks);
    }
    sync();
  }

  [[nodiscard]] __device__ std::uint32_t sum_blocks(const std::uint32_t* local, int blocks) const {
    std::uint32_t part[kMostTopKBlocks];
#pragma unroll
    for (int b = 0; b < kMostTopKBlocks; ++b) part[b] = b < blocks ? load_cluster(local, b) : 0;
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  }

  // Lane i takes the i-th bin of the group from the top. One warp.
  __device__ void find_bin(const std::uint32_t (&histogram)[kDigitBins], int group, std::uint32_t before_group,
                           std::uint32_t wanted, int blocks) const {
    static_assert(kGroupBins <= 32 && kMostTopKBlocks == 8);
    const int bin = kDigitBins - 1 - kGroupBins * group - lane_;
    std::uint32_t count = 0;
    if (lane_ < kGroupBins) count = blocks > 1 ? sum_blocks(&histogram[bin], blocks) : histogram[bin];
    const std::uint32_t before = before_group + inclusive_warp_sum(count, lane_) - count;
    if (lane_ < kGroupBins && before < wanted && before + count >= wanted) {
      shared_.digit = static_cast<std::uint32_t>(bin);
      shared_.wanted = wanted - before;
      shared_.bucket = count;
    }
  }

  // Few rows share the first digit: lists them and decides among the list.
  __device__ void refine_listed(Threshold threshold, std::int32_t* chosen) {
    const std::uint32_t first = threshold.digits;
    const std::uint32_t candidates = shared_.bucket;
    std::uint32_t above = 0;
    for_quads([&](std::int32_t row, const std::uint32_t(&rank)[4]) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const std::uint32_t digit = rank[e] >> kFirstShift;
        above += digit > first ? 1U : 0U;
        if (digit == first) {
          const std::uint32_t at = atomicAdd(&shared_.block_candidates, 1U);
          // The count includes rows past the end if they share the digit.
          shared_.own[at] = {rank[e], row + e};
        }
      }
    });
    above = __reduce_add_sync(0xffffffffU, above);
    if (lane_ == 0) shared_.warp_above[warp_] = above;
    sync();
    std::uint32_t block_above = 0;
    above = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp_) above = block_above;
      block_above += shared_.warp_above[w];
    }
    if (blocks_ > 1) {
      if (thread_ == 0) shared_.block_above = block_above;
      cluster_arrive();
      cluster_wait();
      std::uint32_t others = 0;
      std::uint32_t count = 0;
      if (lane_ < blocks_) {
        if (lane_ < static_cast<int>(cluster_rank())) others = load_cluster(&shared_.block_above, lane_);
        count = load_cluster(&shared_.block_candidates, lane_);
      }
      above += __reduce_add_sync(0xffffffffU, others);
      const std::uint32_t end = inclusive_warp_sum(count, lane_);
      // Entry i is entry i - begin of the block in whose range it lies.
      for (std::uint32_t first_entry = 0; first_entry < candidates; first_entry += kThreads) {
        const std::uint32_t i = first_entry + static_cast<std::uint32_t>(thread_);
        int block = 0;
        std::uint32_t begin = 0;
#pragma unroll
        for (int b = 0; b < kMostTopKBlocks - 1; ++b) {
          const std::uint32_t block_end = __shfl_sync(0xffffffffU, end, b);
          if (b + 1 < blocks_ && i >= block_end) {
            block = b + 1;
            begin = block_end;
          }
        }
        if (i < candidates) {
          const Candidate& entry = shared_.own[i - begin];
          shared_.listed[i] = {load_cluster(&entry.rank, block),
                               static_cast<std::int32_t>(load_cluster(&entry.row, block))};
        }
      }
    }
    cluster_arrive();
    const Candidate* const list = blocks_ > 1 ? shared_.listed : shared_.own;
    decide(list, candidates, threshold);
    std::uint32_t equal = 0;
    std::uint32_t listed_above = 0;
    for (std::uint32_t i = static_cast<std::uint32_t>(lane_); i < candidates; i += 32) {
      const std::uint32_t mark = list[i].row < begin_ ? threshold.mark(list[i].rank) : 0;
      listed_above += mark >> 16;
      equal += mark & 0xffffU;
    }
    above += __reduce_add_sync(0xffffffffU, listed_above);
    equal = __reduce_add_sync(0xffffffffU, equal);
    write(threshold, above, equal, chosen);
  }

  // The further digits of the threshold, among the listed rows.
  __device__ void decide(const Candidate* list, std::uint32_t candidates, Threshold& threshold) {
    std::uint32_t(&histogram)[kDigitBins] = shared_.histogram[kHistograms - 1];  // `listed` lies in the first of two
    while (shared_.bucket != threshold.wanted && threshold.shift > 0) {
      const int before = threshold.shift;
      threshold.shift = max(before - kDigitBits, 0);
      sync();
      clear(histogram);
      sync();
      for (std::uint32_t i = static_cast<std::uint32_t>(thread_); i < candidates; i += kThreads) {
        const std::uint32_t rank = list[i].rank;
        if (rank >> before != threshold.digits) continue;
        const std::uint32_t bins = (1U << (before - threshold.shift)) - 1;
        atomicAdd(&histogram[(rank >> threshold.shift) & bins], 1U);
      }
      find_digit(histogram, shared_.group[0], threshold.wanted, 1);
      threshold.digits = threshold.digits << (before - threshold.shift) | shared_.digit;
      threshold.wanted = shared_.wanted;
    }
    sync();
  }

  // Many do: two more histograms of all rows.
  __device__ void refine_all(Threshold threshold, std::int32_t* chosen) {
    for (int pass = 1; shared_.bucket != threshold.wanted && threshold.shift > 0; ++pass) {
      const int before = threshold.shift;
      threshold.shift = max(before - kDigitBits, 0);
      const std::uint32_t bins = (1U << (before - threshold.shift)) - 1;
      std::uint32_t(&histogram)[kDigitBins] = shared_.histogram[pass % kHistograms];
      sync();
      clear(histogram);
      sync();
      for_quads([&](std::int32_t, const std::uint32_t(&rank)[4]) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (rank[e] >> before == threshold.digits) atomicAdd(&histogram[(rank[e] >> threshold.shift) & bins], 1U);
        }
      });
      find_digit(histogram, shared_.group[pass % 2], threshold.wanted, blocks_);
      threshold.digits = threshold.digits << (before - threshold.shift) | shared_.digit;
      threshold.wanted = shared_.wanted;
    }
    std::uint32_t above = 0;
    std::uint32_t equal = 0;
    for_quads([&](std::int32_t, const std::uint32_t(&rank)[4]) {
      const std::uint32_t own = threshold.marks(rank);
      above += own >> 16;
      equal += own & 0xffffU;
    });
    count_before(above, equal);
    write(threshold, above, equal, chosen);
  }

  // Turns a lane's counts into those of all earlier warps of the cluster.
  __device__ void count_before(std::uint32_t& above, std::uint32_t& equal) {
    above = __reduce_add_sync(0xffffffffU, above);
    equal = __reduce_add_sync(0xffffffffU, equal);
    if (lane_ == 0) {
      shared_.warp_above[warp_] = above;
      shared_.warp_equal[warp_] = equal;
    }
    sync();
    std::uint32_t block_above = 0;
    std::uint32_t block_equal = 0;
    above = equal = 0;
#pragma unroll 1
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp_) {
        above = block_above;
        equal = block_equal;
      }
      block_above += shared_.warp_above[w];
      block_equal += shared_.warp_equal[w];
    }
    if (thread_ == 0) {
      shared_.block_above = block_above;
      shared_.block_equal = block_equal;
    }
    cluster_arrive();
    cluster_wait();
    std::uint32_t others_above = 0;
    std::uint32_t others_equal = 0;
    if (lane_ < static_cast<int>(cluster_rank())) {
      others_above = load_cluster(&shared_.block_above, lane_);
      others_equal = load_cluster(&shared_.block_equal, lane_);
    }
    above += __reduce_add_sync(0xffffffffU, others_above);
    equal += __reduce_add_sync(0xffffffffU, others_equal);
    cluster_arrive();
  }

  // The warp's chosen rows, after `above` and `equal` rows of earlier warps.
  __device__ void write(const Threshold& threshold, std::uint32_t above, std::uint32_t equal,
                        std::int32_t* chosen) const {
    const std::uint32_t wanted = threshold.wanted;
    for_quads([&](std::int32_t row, const std::uint32_t(&rank)[4]) {
      const std::uint32_t own = threshold.marks(rank);
      if (__ballot_sync(0xffffffffU, own != 0) == 0) return;
      const std::uint32_t sum = inclusive_warp_sum(own, lane_);
      std::uint32_t above_here = above + ((sum - own) >> 16);
      std::uint32_t equal_here = equal + ((sum - own) & 0xffffU);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const std::uint32_t what = threshold.mark(rank[e]);
        if (what > 1 || (what == 1 && equal_here < wanted)) chosen[above_here + min(equal_here, wanted)] = row + e;
        above_here += what >> 16;
        equal_here += what & 0xffffU;
      }
      const std::uint32_t total = __shfl_sync(0xffffffffU, sum, 31);
      above += total >> 16;
      equal += total & 0xffffU;
    });
  }

  const float* scores_;
  Shared& shared_;
  int blocks_;          // number of blocks in the cluster
  std::int32_t begin_;  // the warp's rows [begin_, end_)
  std::int32_t end_;
  int thread_ = static_cast<int>(threadIdx.x);
  int warp_ = thread_ / 32;
  int lane_ = thread_ % 32;
  std::uint32_t held_[kHeldQuads][4];
};

// Blocks of a multiprocessor that registers must allow.
template <int kThreads, int kHeldQuads, bool kAlone>
inline constexpr int kMinTopKBlocks = kAlone            ? 2048 / kThreads
                                      : kHeldQuads <= 8 ? 1024 / kThreads
                                                        : 1;

// Grid: a cluster for every token of the batch, or a block (kAlone).
template <int kThreads, int kHeldQuads, bool kAlone>
__global__ void __launch_bounds__(kThreads, kMinTopKBlocks<kThreads, kHeldQuads, kAlone>)
    top_k_rows_kernel(const __grid_constant__ IndexerTopkParams p, const __grid_constant__ ScoreBatch batch) {
  extern __shared__ __align__(16) std::byte top_k_shared[];
  allow_dependents();
  const std::int64_t index = blockIdx.x / cluster_blocks();
  const std::int64_t token = batch.first_token + index;
  std::int32_t rows = visible_index_rows(p, token, batch.most_rows);
  have_ready(rows);
  wait_for_predecessors();
  std::int32_t* const chosen = p.topk_indices + token * p.top_k;
  if (cluster_rank() == 0 && threadIdx.x == 0) p.topk_count[token] = min(rows, p.top_k);
  if (rows <= p.top_k) {
    select_all(rows, p.top_k, static_cast<int>(threadIdx.x), kThreads, chosen);
    return;
  }
  const auto blocks = static_cast<std::int32_t>(cluster_blocks());
  const std::int32_t most = ((rows + blocks - 1) / blocks + 3) / 4 * 4;
  const std::int32_t begin = min(static_cast<std::int32_t>(cluster_rank()) * most, rows);
  TopKBlock<kThreads, kHeldQuads, kAlone>(batch.scores + index * batch.stride,
                                          {.begin = begin, .end = min(begin + most, rows), .most = most},
                                          *reinterpret_cast<TopKShared<kThreads, kAlone>*>(top_k_shared))
      .run(p.top_k, chosen);
}

}  // namespace dsv4rt::cuda
