// Blocks of up to kManyRows rows: a cluster of thread blocks pools a row, each its channels, because a step waits for
// the row and a single multiprocessor takes several microseconds to read its 128 x 512 pairs. One of them gathers the
// channels through distributed shared memory and finishes the row: each in its turn, so that none holds up the others.
//
// A lane pools two channels, a warp a run of rows that lie in registers: all loads are in flight at once, exponentials
// are independent, and the sums in position order go from warp to warp.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/cluster_gather.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/exp.cuh"
#include "backend/cuda/kernels/compress/completed_row.cuh"

namespace dsv4rt::cuda {

inline constexpr int kManyRows = 128;
inline constexpr int kManyRowsWarps = kBlockThreads / 32;
inline constexpr int kWarpRows = kManyRows / kManyRowsWarps;
inline constexpr int kClusterChannels = 64;  // of one block: 8 blocks, what every device allows, for a row of 512
static_assert(kClusterChannels == 2 * 32, "a lane pools two");

struct ManyRowsShared {
  TokenPlace places[32];
  float pooled[kHeadDim];                 // gathered, where the block finishes the row
  float2 largest[2][kManyRowsWarps][32];  // of a warp's rows; alternates, so that slow warps may still read the last
  float4 sums[kManyRowsWarps][32];        // of two weights and two weighted values, up to the end of a warp's rows
  std::uint32_t weighed[kBlockThreads];
  std::uint64_t gathered;  // barrier: `pooled` is complete
  std::uint32_t warp_amax[kRowQuads / 32];
};

// One block's share of the rows that a cluster pools. All blocks of a cluster take the same tokens.
class ManyRowsPool {
 public:
  __device__ ManyRowsPool(const CompressParams& params, ManyRowsShared& shared)
      : p_(params),
        shared_(shared),
        warp_(__shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 32, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        rank_(static_cast<int>(cluster_block_rank())),
        blocks_(params.input.dim / kClusterChannels) {}

  // Pools the rows of the tokens in `left`, bit i standing for token first + i.
  __device__ void run(std::int64_t first, unsigned left) {
    if (threadIdx.x == 0) init_gather_barrier(&shared_.gathered);
    // A lane looks up a token, so that rows do not wait for it one after the other.
    if (warp_ == 0 && (left >> lane_ & 1U) != 0) shared_.places[lane_] = token_place(p_.step, first + lane_);
    __syncthreads();
    for (int count = 0; left != 0; left &= left - 1, ++count) {
      const int index = __ffs(static_cast<int>(left)) - 1;
      pool(first + index, shared_.places[index], count);
    }
  }

 private:
  // The cluster's `count`-th row. Block count % blocks_ finishes it.
  __device__ void pool(std::int64_t token, const TokenPlace& place, int count) {
    // Once a turn arrival says: this block runs and has finished its row of the last turn, so that `pooled` may be
    // written from outside.
    const bool turn_begins = count % blocks_ == 0;
    if (count == 0) {
      arrive_at_cluster();
    } else if (turn_begins) {
      arrive_at_cluster_again();
    }
    const PoolSource source(p_, place);
    const bool finishes = count % blocks_ == rank_ && warp_ < (p_.is_index_key ? kKeyQuads : kRowQuads) / 32;
    CompletedRow row;
    if (finishes) row = CompletedRow(p_, place, token, static_cast<int>(threadIdx.x));
    if (finishes && threadIdx.x == 0) expect_gathered(&shared_.gathered, p_.input.dim * 4);
    const int channel = rank_ * kClusterChannels + 2 * lane_;
    // The last row's, the only fresh one of a decode step.
    const float2 last_bias = load_pair(source.bias(source.end - 1) + channel);
    wait_for_predecessors();
    if (finishes) row.locate(p_);

    float2 score[kWarpRows];  // then weights
    float2 value[kWarpRows];  // then weighted values
    load(source, channel, last_bias, score, value);
    const float2 largest = largest_of_block(score, shared_.largest[count % 2]);
    if (turn_begins) wait_for_cluster();
    std::uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      score[i] = make_float2(exp_nonpositive(__fsub_rn(score[i].x, largest.x)),
                             exp_nonpositive(__fsub_rn(score[i].y, largest.y)));
      value[i] = make_float2(__fmul_rn(score[i].x, value[i].x), __fmul_rn(score[i].y, value[i].y));
      bits |= __float_as_uint(score[i].x) | __float_as_uint(score[i].y);
      bits |= __float_as_uint(value[i].x) | __float_as_uint(value[i].y);
    }
    // Nobody reads it. Without it the compiler weighs rows only after the warp's turn to sum has come.
    shared_.weighed[threadIdx.x] = bits;
    const float4 sums = sum_after_other_warps(score, value);
    if (warp_ == kManyRowsWarps - 1) {
      const float2 pooled = make_float2(round_value(__fdiv_rn(sums.z, sums.x)), round_value(__fdiv_rn(sums.w, sums.y)));
      gather_pair(reinterpret_cast<float2*>(shared_.pooled + channel), &shared_.gathered, count % blocks_, pooled);
    }
    if (finishes) {
      wait_for_gathered(&shared_.gathered, count / blocks_ % 2);
      if (p_.is_index_key) {
        row.store_key(p_, shared_.pooled, lane_);
      } else {
        row.store(p_, shared_.pooled, RowGroup<kRowQuads>::own(), shared_.warp_amax);
      }
    }
  }

  // The warp's rows. A row that does not exist has weight 0, which changes no bit of a sum.
  __device__ void load(const PoolSource& source, int channel, const float2& last_bias, float2 (&score)[kWarpRows],
                       float2 (&value)[kWarpRows]) const {
    const int first = warp_ * kWarpRows;
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      const PoolRow row = source.row(min(max(first + i, source.begin), source.end - 1));
      score[i] = load_pair_once(row.score + channel);
      value[i] = load_pair_once(row.kv + channel);
    }
    if (first + kWarpRows > source.fresh) {
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

  __device__ float2 largest_of_block(const float2 (&score)[kWarpRows], float2 (&of_warps)[kManyRowsWarps][32]) const {
    const auto larger = [](const float2& a, const float2& b) { return make_float2(fmaxf(a.x, b.x), fmaxf(a.y, b.y)); };
    float2 largest = score[0];
#pragma unroll
    for (int i = 1; i < kWarpRows; ++i) largest = larger(largest, score[i]);
    of_warps[warp_][lane_] = largest;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kManyRowsWarps; ++warp) largest = larger(largest, of_warps[warp][lane_]);
    return largest;
  }

  // Sums over the rows up to the end of the warp's, in position order: a warp goes on where the one before ends.
  __device__ float4 sum_after_other_warps(const float2 (&weight)[kWarpRows], const float2 (&weighted)[kWarpRows]) {
    float4 sums{};
    if (warp_ > 0) {
      meet_previous(warp_);
      sums = shared_.sums[warp_ - 1][lane_];
    }
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      sums = add_quads(sums, make_float4(weight[i].x, weight[i].y, weighted[i].x, weighted[i].y));
    }
    if (warp_ < kManyRowsWarps - 1) {
      shared_.sums[warp_][lane_] = sums;
      meet_previous(warp_ + 1);
    }
    return sums;
  }

  // Warp - 1 and warp meet; the barriers before belong to row groups.
  static constexpr int kFirstPairBarrier = 6;
  static_assert(kFirstPairBarrier + kManyRowsWarps <= 16);
  __device__ static void meet_previous(int warp) {
    asm volatile("bar.sync %0, 64;" ::"r"(kFirstPairBarrier + warp) : "memory");
  }

  const CompressParams& p_;
  ManyRowsShared& shared_;
  int warp_;
  int lane_;
  int rank_;
  int blocks_;
};

}  // namespace dsv4rt::cuda
