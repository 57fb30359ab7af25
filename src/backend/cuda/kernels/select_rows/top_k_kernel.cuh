// Exact top-k of a token's scores, ascending by row: radix selection of the k-th rank, then one ordered
// pass that collects. A block per token; each warp owns a contiguous segment of the rows, so that output
// positions follow from counts per segment.
#pragma once

#include <cstdint>

#include "backend/cpu/top_k.h"
#include "backend/cuda/kernels/select_rows/params.h"

namespace dsv4rt::cuda {

inline constexpr int kTopKThreads = 1024;
inline constexpr int kTopKWarps = kTopKThreads / 32;
inline constexpr int kFirstDigitShift = 20;  // digits of 12, 10 and 10 bits
inline constexpr int kSecondDigitShift = 10;
inline constexpr int kFirstDigitBins = 1 << (32 - kFirstDigitShift);
inline constexpr int kLaterDigitBins = 1 << kSecondDigitShift;
// Rows that share the k-th rank's first digit are kept aside if there are no more than this many.
inline constexpr int kMostCandidates = 8192;

struct TopKShared {
  std::uint32_t histogram[kFirstDigitBins];
  std::uint32_t candidate_rank[kMostCandidates];
  std::int32_t candidate_row[kMostCandidates];
  std::uint32_t above[kTopKWarps];  // rows of the segment that rank above the k-th
  std::uint32_t equal[kTopKWarps];  // rows of the segment that rank as the k-th; later: of these, chosen
  std::uint32_t begin[kTopKWarps];  // output position of the segment
  std::uint32_t warp_total[kTopKWarps];
  std::uint32_t candidates;
  std::uint32_t digit;   // of the k-th rank
  std::uint32_t wanted;  // rows still to be taken from those that share its digits so far
  std::uint32_t bucket;  // how many do
};

__device__ inline std::uint32_t inclusive_warp_sum(std::uint32_t value, int lane) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::uint32_t below = __shfl_up_sync(0xffffffffu, value, static_cast<unsigned>(distance));
    if (lane >= distance) value += below;
  }
  return value;
}

class TopKBlock {
 public:
  __device__ TopKBlock(const float* scores, std::int32_t rows, TopKShared& shared)
      : scores_(scores),
        rows_(rows),
        shared_(shared),
        segment_(((rows + kTopKWarps - 1) / kTopKWarps + 127) / 128 * 128) {}

  // Writes k < rows row numbers to `chosen`.
  __device__ void run(std::int32_t k, std::int32_t* chosen) {
    histogram(kFirstDigitBins, [&](auto&& add) {
      scan_segment([&](std::int32_t, const std::uint32_t(&rank)[4], int valid) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (e < valid) add(rank[e] >> kFirstDigitShift);
        }
      });
    });
    find_digit(kFirstDigitBins, static_cast<std::uint32_t>(k));
    const std::uint32_t first = shared_.digit;
    const bool listed = shared_.bucket <= kMostCandidates;
    partition(first, listed);

    std::uint32_t prefix = first << kFirstDigitShift;
    std::uint32_t prefix_mask = ~std::uint32_t{0} << kFirstDigitShift;
    for (int shift = kSecondDigitShift; shift >= 0; shift -= kSecondDigitShift) {
      const std::uint32_t wanted = shared_.wanted;
      histogram(kLaterDigitBins, [&](auto&& add) {
        for_candidates(first, listed, [&](std::int32_t, std::uint32_t rank) {
          if ((rank & prefix_mask) == prefix) add((rank >> shift) & (kLaterDigitBins - 1));
        });
      });
      find_digit(kLaterDigitBins, wanted);
      prefix |= shared_.digit << shift;
      prefix_mask |= std::uint32_t{kLaterDigitBins - 1} << shift;
    }
    for_candidates(first, listed, [&](std::int32_t row, std::uint32_t rank) {
      if (rank > prefix) atomicAdd(&shared_.above[row / segment_], 1u);
      if (rank == prefix) atomicAdd(&shared_.equal[row / segment_], 1u);
    });
    __syncthreads();
    place_segments();
    collect(prefix, chosen);
  }

 private:
  // Calls visit(row, rank[4], valid) for the warp's segment, four rows a lane, all lanes together; the
  // first `valid` of the four exist.
  template <class Visit>
  __device__ void scan_segment(const Visit& visit) const {
    constexpr int kBatch = 4;
    const std::int32_t begin = warp_ * segment_;
    const std::int32_t end = min(begin + segment_, rows_);
    for (std::int32_t base = begin; base < end; base += kBatch * 128) {
      float4 values[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const std::int32_t row = base + i * 128 + lane_ * 4;
        values[i] = row < end ? __ldg(reinterpret_cast<const float4*>(scores_ + row)) : float4{};
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const std::int32_t row = base + i * 128 + lane_ * 4;
        const std::uint32_t rank[4] = {cpu::score_rank(values[i].x), cpu::score_rank(values[i].y),
                                       cpu::score_rank(values[i].z), cpu::score_rank(values[i].w)};
        visit(row, rank, max(0, min(4, end - row)));
      }
    }
  }

  // Rows whose first digit is `first`, in any order.
  template <class Visit>
  __device__ void for_candidates(std::uint32_t first, bool listed, const Visit& visit) const {
    if (listed) {
      for (int i = thread_; i < static_cast<int>(shared_.candidates); i += kTopKThreads) {
        visit(shared_.candidate_row[i], shared_.candidate_rank[i]);
      }
      return;
    }
    scan_segment([&](std::int32_t row, const std::uint32_t(&rank)[4], int valid) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e < valid && rank[e] >> kFirstDigitShift == first) visit(row + e, rank[e]);
      }
    });
  }

  template <class Fill>
  __device__ void histogram(int bins, const Fill& fill) {
    __syncthreads();
    for (int i = thread_; i < bins; i += kTopKThreads) shared_.histogram[i] = 0;
    __syncthreads();
    fill([this](std::uint32_t bin) { atomicAdd(&shared_.histogram[bin], 1u); });
    __syncthreads();
  }

  // From the top bin down: the bin in which the wanted-th row lies. Each thread takes consecutive bins.
  __device__ void find_digit(int bins, std::uint32_t wanted) {
    const int share = bins / kTopKThreads;
    const int top = bins - 1 - thread_ * share;
    std::uint32_t own = 0;
    for (int i = 0; i < share; ++i) own += shared_.histogram[top - i];
    const std::uint32_t in_warp = inclusive_warp_sum(own, lane_);
    if (lane_ == 31) shared_.warp_total[warp_] = in_warp;
    __syncthreads();
    std::uint32_t before = in_warp - own;
    for (int w = 0; w < warp_; ++w) before += shared_.warp_total[w];
    if (before < wanted && before + own >= wanted) {
      int bin = top;
      while (before + shared_.histogram[bin] < wanted) before += shared_.histogram[bin--];
      shared_.digit = static_cast<std::uint32_t>(bin);
      shared_.wanted = wanted - before;
      shared_.bucket = shared_.histogram[bin];
    }
    __syncthreads();
  }

  // Counts every segment's rows above the first digit and lists those that share it.
  __device__ void partition(std::uint32_t first, bool listed) {
    if (thread_ == 0) shared_.candidates = 0;
    if (thread_ < kTopKWarps) shared_.equal[thread_] = 0;
    __syncthreads();
    std::uint32_t above = 0;
    scan_segment([&](std::int32_t row, const std::uint32_t(&rank)[4], int valid) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e >= valid) continue;
        const std::uint32_t digit = rank[e] >> kFirstDigitShift;
        if (digit > first) ++above;
        if (!listed || digit != first) continue;
        const std::uint32_t at = atomicAdd(&shared_.candidates, 1u);
        shared_.candidate_rank[at] = rank[e];
        shared_.candidate_row[at] = row + e;
      }
    });
    above = __reduce_add_sync(0xffffffffu, above);
    if (lane_ == 0) shared_.above[warp_] = above;
    __syncthreads();
  }

  // Of the rows that rank equal the lowest are taken; segments follow one another in the output.
  __device__ void place_segments() {
    if (warp_ == 0) {
      const std::uint32_t equal = shared_.equal[lane_];
      const std::uint32_t equal_before = inclusive_warp_sum(equal, lane_) - equal;
      const std::uint32_t wanted = shared_.wanted;
      const std::uint32_t taken = equal_before < wanted ? min(equal, wanted - equal_before) : 0u;
      const std::uint32_t size = shared_.above[lane_] + taken;
      shared_.begin[lane_] = inclusive_warp_sum(size, lane_) - size;
      shared_.equal[lane_] = taken;
    }
    __syncthreads();
  }

  __device__ void collect(std::uint32_t kth, std::int32_t* chosen) const {
    const std::uint32_t take = shared_.equal[warp_];
    std::int32_t* out = chosen + shared_.begin[warp_];
    std::uint32_t above_seen = 0;
    std::uint32_t equal_seen = 0;
    scan_segment([&](std::int32_t row, const std::uint32_t(&rank)[4], int valid) {
      std::uint32_t own = 0;  // rows above in the upper half, equal ones in the lower
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e < valid) own += rank[e] > kth ? 0x10000u : rank[e] == kth ? 1u : 0u;
      }
      if (__ballot_sync(0xffffffffu, own != 0) == 0) return;
      const std::uint32_t sum = inclusive_warp_sum(own, lane_);
      std::uint32_t above = above_seen + ((sum - own) >> 16);
      std::uint32_t equal = equal_seen + ((sum - own) & 0xffffu);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e >= valid || rank[e] < kth) continue;
        if (rank[e] > kth || equal < take) out[above + min(equal, take)] = row + e;
        if (rank[e] > kth) {
          ++above;
        } else {
          ++equal;
        }
      }
      const std::uint32_t total = __shfl_sync(0xffffffffu, sum, 31);
      above_seen += total >> 16;
      equal_seen += total & 0xffffu;
    });
  }

  const float* scores_;
  std::int32_t rows_;
  TopKShared& shared_;
  std::int32_t segment_;  // rows of a warp, a multiple of 128
  int thread_ = static_cast<int>(threadIdx.x);
  int warp_ = thread_ / 32;
  int lane_ = thread_ % 32;
};

// Grid: x = tokens of the batch.
__global__ void __launch_bounds__(kTopKThreads, 1)
    top_k_rows_kernel(const __grid_constant__ SelectRowsParams p, const __grid_constant__ ScoreBatch batch) {
  extern __shared__ __align__(16) std::byte top_k_shared[];
  const std::int64_t index = blockIdx.x;
  const std::int64_t token = batch.first_token + index;
  const std::int32_t rows = visible_index_rows(p, token, batch.most_rows);
  std::int32_t* chosen = p.selected + token * p.top_k;
  if (threadIdx.x == 0) p.selected_count[token] = min(rows, p.top_k);
  if (rows <= p.top_k) {
    for (int i = static_cast<int>(threadIdx.x); i < p.top_k; i += kTopKThreads) chosen[i] = i < rows ? i : -1;
    return;
  }
  TopKBlock(batch.scores + index * batch.stride, rows, *reinterpret_cast<TopKShared*>(top_k_shared))
      .run(p.top_k, chosen);
}

}  // namespace dsv4rt::cuda
