// Exact top-k of a token's scores, ascending by row: radix selection of the k-th rank, then one ordered pass
// that writes the rows above it and the lowest of those that equal it.
//
// A cluster of blocks takes a token; each of its warps owns a contiguous segment of the rows. Histograms stay in the blocks'
// shared memory and are added up where they are read; sums of integers, so that the number of blocks changes
// nothing. A thread keeps the ranks of its first rows in registers and reads those of later rows again.
#pragma once

#include <cstdint>

#include "backend/cpu/top_k.h"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/select_rows/params.h"

namespace dsv4rt::cuda {

inline constexpr int kTopKThreads = 512;
inline constexpr int kTopKWarps = kTopKThreads / 32;
inline constexpr int kMostTopKBlocks = 8;
inline constexpr int kQuadRows = 128;  // rows of one float4 of every lane
inline constexpr int kDigitBits = 12;
inline constexpr int kDigitBins = 1 << kDigitBits;
inline constexpr int kGroupBins = kDigitBins / kTopKThreads;

struct TopKShared {
  std::uint32_t histogram[2][kDigitBins];   // of one digit of the ranks; passes take turns
  std::uint32_t group[2][kTopKThreads];     // sums of kGroupBins bins, the top ones first
  std::uint32_t warp_total[kTopKWarps];
  std::uint32_t found_group;
  std::uint32_t before_group;  // rows above the found group
  std::uint32_t digit;         // of the k-th rank
  std::uint32_t wanted;        // rows still to be taken from those that share its digits so far
  std::uint32_t bucket;        // how many do
  std::uint32_t warp_equal[kTopKWarps];
  std::uint32_t block_above;  // rows of the block above the k-th rank
  std::uint32_t block_equal;  // and equal to it
};

__device__ inline std::uint32_t inclusive_warp_sum(std::uint32_t value, int lane) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::uint32_t below = __shfl_up_sync(0xffffffffU, value, static_cast<unsigned>(distance));
    if (lane >= distance) value += below;
  }
  return value;
}

__device__ inline std::uint32_t load_cluster(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];\n" : "=r"(value) : "r"(address) : "memory");
  return value;
}

template <int kHeldQuads>
class TopKBlock {
 public:
  __device__ TopKBlock(const float* scores, std::int32_t rows, TopKShared& shared)
      : scores_(scores), shared_(shared), blocks_(static_cast<int>(cluster_blocks())) {
    const std::int32_t block_rows = ((rows + blocks_ - 1) / blocks_ + 3) / 4 * 4;
    const std::int32_t block_begin = min(static_cast<std::int32_t>(cluster_rank()) * block_rows, rows);
    const std::int32_t block_end = min(block_begin + block_rows, rows);
    const std::int32_t warp_rows = (block_rows + kTopKWarps * kQuadRows - 1) / (kTopKWarps * kQuadRows) * kQuadRows;
    begin_ = min(block_begin + warp_ * warp_rows, block_end);
    end_ = min(begin_ + warp_rows, block_end);
  }

  // Writes k < rows row numbers to `chosen`.
  __device__ void run(std::int32_t k, std::int32_t* chosen) {
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i) load_quad(begin_ + i * kQuadRows + 4 * lane_, held_[i]);
    clear_histogram(0);
    clear_histogram(1);
    std::uint32_t prefix = 0;
    std::uint32_t wanted = static_cast<std::uint32_t>(k);
    int shift = 32;
    for (int pass = 0; shift > 0; ++pass) {
      const int before = shift;
      shift = max(shift - kDigitBits, 0);
      if (pass == 2) clear_histogram(0);
      __syncthreads();
      std::uint32_t* const histogram = shared_.histogram[pass % 2];
      for_quads([&](std::int32_t, const std::uint32_t(&rank)[4]) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          // 64-bit shift: the first pass has no prefix.
          if ((std::uint64_t{rank[e] ^ prefix} >> before) == 0) {
            atomicAdd(&histogram[(rank[e] >> shift) & (kDigitBins - 1)], 1U);
          }
        }
      });
      find_digit(pass % 2, wanted);
      prefix |= shared_.digit << shift;
      wanted = shared_.wanted;
      if (shared_.bucket == wanted) break;  // all rows with these digits are in
    }
    collect(prefix, shift, wanted, chosen);
  }

 private:
  // Ranks of four rows from `row` on. Rows past the end get the lowest rank: they come after every row that
  // exists, so that k others precede them.
  __device__ void load_quad(std::int32_t row, std::uint32_t (&rank)[4]) const {
    float4 value{};
    if (row < end_) value = __ldg(reinterpret_cast<const float4*>(scores_ + row));
    rank[0] = row < end_ ? cpu::score_rank(value.x) : 0;
    rank[1] = row + 1 < end_ ? cpu::score_rank(value.y) : 0;
    rank[2] = row + 2 < end_ ? cpu::score_rank(value.z) : 0;
    rank[3] = row + 3 < end_ ? cpu::score_rank(value.w) : 0;
  }

  // visit(first row, ranks) for all of the lane's quads, in order; the lanes of a warp make the same calls.
  template <class Visit>
  __device__ void for_quads(const Visit& visit) const {
    std::int32_t row = begin_ + 4 * lane_;
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i, row += kQuadRows) visit(row, held_[i]);
#pragma unroll 2
    for (; row - 4 * lane_ < end_; row += kQuadRows) {
      std::uint32_t rank[4];
      load_quad(row, rank);
      visit(row, rank);
    }
  }

  __device__ void clear_histogram(int buffer) {
    auto* const bins = reinterpret_cast<uint4*>(shared_.histogram[buffer]);
#pragma unroll
    for (int i = 0; i < kDigitBins / 4 / kTopKThreads; ++i) bins[thread_ + i * kTopKThreads] = uint4{};
  }

  // Sum of `value` over the threads before this one.
  __device__ std::uint32_t sum_before(std::uint32_t value) {
    const std::uint32_t in_warp = inclusive_warp_sum(value, lane_);
    if (lane_ == 31) shared_.warp_total[warp_] = in_warp;
    __syncthreads();
    std::uint32_t before = in_warp - value;
#pragma unroll
    for (int w = 0; w < kTopKWarps; ++w) before += w < warp_ ? shared_.warp_total[w] : 0;
    return before;
  }

  // From the top bin down: the bin, of the cluster's histogram, in which the wanted-th row lies.
  __device__ void find_digit(int buffer, std::uint32_t wanted) {
    __syncthreads();
    const std::uint32_t* const bins = shared_.histogram[buffer] + kDigitBins - kGroupBins * (thread_ + 1);
    std::uint32_t own = 0;
#pragma unroll
    for (int i = 0; i < kGroupBins / 4; ++i) {
      const uint4 four = reinterpret_cast<const uint4*>(bins)[i];
      own += four.x + four.y + four.z + four.w;
    }
    shared_.group[buffer][thread_] = own;
    cluster_arrive();
    cluster_wait();
    std::uint32_t sum = own;
    if (blocks_ > 1) {
      sum = 0;
      const std::uint32_t address = local_address(&shared_.group[buffer][thread_]);
      for (int b = 0; b < blocks_; ++b) sum += load_cluster(block_address(address, static_cast<unsigned>(b)));
    }
    const std::uint32_t before = sum_before(sum);
    if (before < wanted && before + sum >= wanted) {
      shared_.found_group = static_cast<std::uint32_t>(thread_);
      shared_.before_group = before;
    }
    __syncthreads();
    if (warp_ == 0) find_bin(buffer, wanted);
    __syncthreads();
  }

  // Lane i takes the group's i-th bin from the top.
  __device__ void find_bin(int buffer, std::uint32_t wanted) {
    static_assert(kGroupBins <= 32);
    const int bin = kDigitBins - 1 - kGroupBins * static_cast<int>(shared_.found_group) - lane_;
    std::uint32_t count = 0;
    if (lane_ < kGroupBins) {
      const std::uint32_t address = local_address(&shared_.histogram[buffer][bin]);
      for (int b = 0; b < blocks_; ++b) count += load_cluster(block_address(address, static_cast<unsigned>(b)));
    }
    const std::uint32_t before = shared_.before_group + inclusive_warp_sum(count, lane_) - count;
    if (lane_ < kGroupBins && before < wanted && before + count >= wanted) {
      shared_.digit = static_cast<std::uint32_t>(bin);
      shared_.wanted = wanted - before;
      shared_.bucket = count;
    }
  }

  // The rows above `prefix` in the digits from `shift` up, and the first `wanted` that equal it there.
  __device__ void collect(std::uint32_t prefix, int shift, std::uint32_t wanted, std::int32_t* chosen) {
    const std::uint32_t kth = prefix >> shift;
    // Above the k-th in the upper half, equal to it in the lower.
    const auto mark = [&](const std::uint32_t(&rank)[4], int e) {
      const std::uint32_t digits = rank[e] >> shift;
      return digits > kth ? 0x10000U : digits == kth ? 1U : 0U;
    };
    std::uint32_t above = 0;
    std::uint32_t equal = 0;
    for_quads([&](std::int32_t, const std::uint32_t(&rank)[4]) {
      const std::uint32_t own = mark(rank, 0) + mark(rank, 1) + mark(rank, 2) + mark(rank, 3);
      above += own >> 16;
      equal += own & 0xffffU;
    });
    count_before(above, equal);
    for_quads([&](std::int32_t row, const std::uint32_t(&rank)[4]) {
      const std::uint32_t own = mark(rank, 0) + mark(rank, 1) + mark(rank, 2) + mark(rank, 3);
      if (__ballot_sync(0xffffffffU, own != 0) == 0) return;
      const std::uint32_t sum = inclusive_warp_sum(own, lane_);
      std::uint32_t above_here = above + ((sum - own) >> 16);
      std::uint32_t equal_here = equal + ((sum - own) & 0xffffU);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const std::uint32_t what = mark(rank, e);
        if (what > 1 || (what == 1 && equal_here < wanted)) chosen[above_here + min(equal_here, wanted)] = row + e;
        above_here += what >> 16;
        equal_here += what & 0xffffU;
      }
      const std::uint32_t total = __shfl_sync(0xffffffffU, sum, 31);
      above += total >> 16;
      equal += total & 0xffffU;
    });
    cluster_wait();  // the blocks' counts have been read
  }

  // Turns a thread's counts into those of all earlier warps of the cluster, the same in every lane.
  __device__ void count_before(std::uint32_t& above, std::uint32_t& equal) {
    above = __reduce_add_sync(0xffffffffU, above);
    equal = __reduce_add_sync(0xffffffffU, equal);
    if (lane_ == 0) {
      shared_.warp_total[warp_] = above;
      shared_.warp_equal[warp_] = equal;
    }
    __syncthreads();
    std::uint32_t all_above = 0;
    std::uint32_t all_equal = 0;
    above = equal = 0;
#pragma unroll
    for (int w = 0; w < kTopKWarps; ++w) {
      if (w == warp_) {
        above = all_above;
        equal = all_equal;
      }
      all_above += shared_.warp_total[w];
      all_equal += shared_.warp_equal[w];
    }
    if (blocks_ > 1) {
      if (thread_ == 0) {
        shared_.block_above = all_above;
        shared_.block_equal = all_equal;
      }
      cluster_arrive();
      cluster_wait();
      std::uint32_t before_above = 0;
      std::uint32_t before_equal = 0;
      if (lane_ < static_cast<int>(cluster_rank())) {
        before_above = load_cluster(block_address(local_address(&shared_.block_above), static_cast<unsigned>(lane_)));
        before_equal = load_cluster(block_address(local_address(&shared_.block_equal), static_cast<unsigned>(lane_)));
      }
      above += __reduce_add_sync(0xffffffffU, before_above);
      equal += __reduce_add_sync(0xffffffffU, before_equal);
    }
    cluster_arrive();
  }

  static __device__ std::uint32_t local_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
  }

  const float* scores_;
  TopKShared& shared_;
  int blocks_;          // of the cluster
  std::int32_t begin_;  // the warp's rows [begin_, end_)
  std::int32_t end_;
  int thread_ = static_cast<int>(threadIdx.x);
  int warp_ = thread_ / 32;
  int lane_ = thread_ % 32;
  std::uint32_t held_[kHeldQuads][4];
};

// Grid: a cluster for every token of the batch.
template <int kHeldQuads>
__global__ void __launch_bounds__(kTopKThreads)
    top_k_rows_kernel(const __grid_constant__ SelectRowsParams p, const __grid_constant__ ScoreBatch batch) {
  extern __shared__ __align__(16) std::byte top_k_shared[];
  wait_for_predecessors();
  const std::int64_t index = blockIdx.x / cluster_blocks();
  const std::int64_t token = batch.first_token + index;
  const std::int32_t rows = visible_index_rows(p, token, batch.most_rows);
  std::int32_t* const chosen = p.selected + token * p.top_k;
  const int thread = static_cast<int>(threadIdx.x);
  if (cluster_rank() == 0 && thread == 0) p.selected_count[token] = min(rows, p.top_k);
  if (rows <= p.top_k) {
    const int step = kTopKThreads * static_cast<int>(cluster_blocks());
    for (int i = static_cast<int>(cluster_rank()) * kTopKThreads + thread; i < p.top_k; i += step) {
      chosen[i] = i < rows ? i : -1;
    }
    return;
  }
  TopKBlock<kHeldQuads>(batch.scores + index * batch.stride, rows, *reinterpret_cast<TopKShared*>(top_k_shared))
      .run(p.top_k, chosen);
}

}  // namespace dsv4rt::cuda
