// Blocks of up to kMostClusterRows rows: a cluster of thread blocks pools a row, each its channels, because a step
// waits for the row and a single multiprocessor takes several microseconds to read its 128 x 512 pairs. One of them
// gathers the channels through distributed shared memory and finishes the row: each in its turn, so that none holds up
// the others.
//
// A warp takes a run of rows and a lane two channels of them, in registers: all loads are in flight at once, and the
// next row's while this one is summed.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/cluster_gather.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/exp.cuh"
#include "backend/cuda/kernels/compress/completed_row.cuh"

namespace dsv4rt::cuda {

inline constexpr int kMostClusterRows = 128;
inline constexpr int kClusterPoolWarps = kBlockThreads / 32;
inline constexpr int kWarpRows = kMostClusterRows / kClusterPoolWarps;
// Channels of one block: a row of 512 takes 8 blocks, what every device allows. With 16, which the H200 allows too,
// barriers in shared memory make compute-sanitizer's synccheck (CUDA 13.0) fault.
inline constexpr int kClusterChannels = 64;
static_assert(kClusterChannels == 2 * 32, "a lane pools two");

struct ClusterPoolShared {
  float2 weighed[kMostClusterRows][kClusterChannels];  // a row's weight and weighted value
  float2 largest[kClusterPoolWarps][32];               // largest score of each warp's rows
  float pooled[kHeadDim];                              // gathered, where the block finishes the row
  TokenPosition places[32];
  std::uint64_t gathered;  // barrier: `pooled` is complete
  std::uint32_t warp_amax[kRowQuads / 32];
};

// One block's share of the rows that a cluster pools. All blocks of a cluster take the same tokens.
class ClusterPool {
 public:
  __device__ ClusterPool(const CompressParams& params, ClusterPoolShared& shared)
      : p_(params),
        shared_(shared),
        warp_(__shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 32, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        rank_(static_cast<int>(cluster_rank())),
        blocks_(params.input.dim / kClusterChannels) {}

  // Pools the rows of the tokens in `left`, bit i standing for token first + i. The count-th is finished by block
  // count % blocks_.
  __device__ void run(std::int64_t first, unsigned left) {
    if (threadIdx.x == 0) init_gather_barrier(&shared_.gathered);
    // A lane looks up a token, so that rows do not wait for it one after the other.
    if (warp_ == 0 && (left >> lane_ & 1U) != 0) shared_.places[lane_] = token_position(p_.step, first + lane_);
    __syncthreads();
    const int channel = rank_ * kClusterChannels + 2 * lane_;
    float2 score[kWarpRows];
    float2 value[kWarpRows];
    CompletedRow row;
    for (int count = 0;; ++count) {
      const bool more = left != 0;
      const bool turn_begins = count % blocks_ == 0;
      if (more) {
        const int index = __ffs(static_cast<int>(left)) - 1;
        left &= left - 1;
        const TokenPosition place = shared_.places[index];
        if (finishes(count)) {
          row = CompletedRow(p_, place, first + index, static_cast<int>(threadIdx.x));
          if (threadIdx.x == 0) expect_gathered(&shared_.gathered, static_cast<unsigned>(p_.input.dim) * 4);
        }
        if (count == 0) arrive_with_gather_barrier();
        const PoolSource source(p_, place);
        // The last row's, the only fresh one of a decode step.
        const float2 last_bias = load_pair(source.bias(source.end - 1) + channel);
        wait_for_predecessors();
        if (finishes(count)) row.locate(p_);
        load(source, channel, last_bias, score, value);
      }
      if (count > 0) {
        sum_and_gather(count - 1);
        if (finishes(count - 1)) finish(row, count - 1);
      }
      if (!more) return;
      // Once a turn arrival says: this block runs and has finished its row of the last turn, so that `pooled` may be
      // written from outside.
      if (count > 0 && turn_begins) cluster_arrive();
      weigh(score, value);
      if (turn_begins) cluster_wait();
      __syncthreads();
    }
  }

 private:
  [[nodiscard]] __device__ bool finishes(int count) const {
    return count % blocks_ == rank_ && warp_ < (p_.is_index_key ? kKeyQuads : kRowQuads) / 32;
  }

  // The warp's rows. A row that does not exist has weight 0, which changes no bit of a sum.
  __device__ void load(const PoolSource& source, int channel, const float2& last_bias, float2 (&score)[kWarpRows],
                       float2 (&value)[kWarpRows]) const {
    const int first = warp_ * kWarpRows;
    const int step = first + kWarpRows <= source.end ? source.even_step(first, kWarpRows - 1) : 0;
    if (step != 0) {
      const PoolRow last = source.row(first + kWarpRows - 1);
      const PoolRow row = source.row(first);
#pragma unroll
      for (int i = 0; i + 1 < kWarpRows; ++i) score[i] = load_pair_once(row.score + channel + i * step);
      score[kWarpRows - 1] = load_pair_once(last.score + channel);
#pragma unroll
      for (int i = 0; i + 1 < kWarpRows; ++i) value[i] = load_pair_once(row.kv + channel + i * step);
      value[kWarpRows - 1] = load_pair_once(last.kv + channel);
    } else {
      const auto existing = [&](int row) { return source.row(min(max(row, source.begin), source.end - 1)); };
#pragma unroll
      for (int i = 0; i < kWarpRows; ++i) score[i] = load_pair_once(existing(first + i).score + channel);
#pragma unroll
      for (int i = 0; i < kWarpRows; ++i) value[i] = load_pair_once(existing(first + i).kv + channel);
    }
    if (step != 0 && first + kWarpRows == source.fresh + 1 && first + kWarpRows == source.end) {  // decode
      float2& own = score[kWarpRows - 1];
      own = make_float2(__fadd_rn(own.x, last_bias.x), __fadd_rn(own.y, last_bias.y));
    } else if (first + kWarpRows > source.fresh) {
#pragma unroll
      for (int i = 0; i < kWarpRows; ++i) {
        const int row = first + i;
        if (row < source.fresh || row < source.begin || row >= source.end) continue;
        const float2 bias = row == source.end - 1 ? last_bias : load_pair(source.bias(row) + channel);
        score[i] = make_float2(__fadd_rn(score[i].x, bias.x), __fadd_rn(score[i].y, bias.y));
      }
    }
    if (first >= source.begin && first + kWarpRows <= source.end) return;
    const float low = __int_as_float(static_cast<int>(0xff800000U));
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      if (first + i >= source.begin && first + i < source.end) continue;
      score[i] = make_float2(low, low);
      value[i] = float2{};
    }
  }
  // Loads that stay together, of data that nobody reads again soon.
  __device__ static float2 load_pair_once(const float* at) {
    float2 pair;
    asm volatile("ld.global.L1::no_allocate.v2.f32 {%0, %1}, [%2];"
                 : "=f"(pair.x), "=f"(pair.y)
                 : "l"(__cvta_generic_to_global(at)));
    return pair;
  }

  // Weights and weighted values to shared memory; the block must meet before they are read.
  __device__ void weigh(const float2 (&score)[kWarpRows], const float2 (&value)[kWarpRows]) {
    const auto larger = [](const float2& a, const float2& b) { return make_float2(fmaxf(a.x, b.x), fmaxf(a.y, b.y)); };
    float2 largest = score[0];
#pragma unroll
    for (int i = 1; i < kWarpRows; ++i) largest = larger(largest, score[i]);
    shared_.largest[warp_][lane_] = largest;
    __syncthreads();  // `largest` is complete, and all have read what the row before left in `weighed`
#pragma unroll
    for (int warp = 0; warp < kClusterPoolWarps; ++warp) largest = larger(largest, shared_.largest[warp][lane_]);
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      const float even = exp_nonpositive(__fsub_rn(score[i].x, largest.x));
      const float odd = exp_nonpositive(__fsub_rn(score[i].y, largest.y));
      reinterpret_cast<float4*>(shared_.weighed[warp_ * kWarpRows + i])[lane_] =
          make_float4(even, __fmul_rn(even, value[i].x), odd, __fmul_rn(odd, value[i].y));
    }
  }

  // Sums in position order, a thread those of a channel's weights or weighted values. Loads run ahead of the
  // additions, which wait for each other.
  __device__ void sum_and_gather(int count) {
    constexpr int kAhead = 8;
    constexpr int kColumns = 2 * kClusterChannels;
    if (warp_ >= kColumns / 32) return;
    const int thread = static_cast<int>(threadIdx.x);
    const float* column = reinterpret_cast<const float*>(shared_.weighed) + thread;
    float ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = column[i * kColumns];
    float sum = 0.0F;
#pragma unroll 2
    for (int first = kAhead; first <= kMostClusterRows; first += kAhead) {
      float current[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        current[i] = ahead[i];
        if (first < kMostClusterRows) ahead[i] = column[(first + i) * kColumns];
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) sum = __fadd_rn(sum, current[i]);
    }
    const float weighted = __shfl_xor_sync(kFullWarp, sum, 1);
    if (lane_ % 2 == 0) {
      gather_value(&shared_.pooled[rank_ * kClusterChannels + thread / 2], &shared_.gathered,
                   static_cast<unsigned>(count % blocks_), round_value(__fdiv_rn(weighted, sum)));
    }
  }

  __device__ void finish(const CompletedRow& row, int count) {
    wait_for_gathered(&shared_.gathered, static_cast<unsigned>(count / blocks_ % 2));
    if (p_.is_index_key) {
      row.store_key(p_, shared_.pooled, lane_);
    } else {
      row.store(p_, shared_.pooled, RowGroup<kRowQuads>::own(), shared_.warp_amax);
    }
  }

  const CompressParams& p_;
  ClusterPoolShared& shared_;
  int warp_;
  int lane_;
  int rank_;
  int blocks_;
};

}  // namespace dsv4rt::cuda
