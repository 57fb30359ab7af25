// Blocks of any number of rows: a cluster of blocks pools a row, each block its channels, because a step waits for
// the row and a single multiprocessor takes several microseconds to read its 128 x 512 pairs. The first block of
// the cluster gathers the channels through distributed shared memory and finishes the row.
#pragma once

#include <cstdint>
#include <cuda_pipeline.h>

#include "backend/cuda/kernels/common/cluster_gather.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/exp.cuh"
#include "backend/cuda/kernels/compress/completed_row.cuh"

namespace dsv4rt::cuda {

inline constexpr int kManyRowsThreads = 256;
inline constexpr int kClusterChannels = 32;  // of one block of a cluster: 16 blocks for a row of 512
inline constexpr int kClusterQuads = kClusterChannels / 4;
inline constexpr int kRowGroups = kManyRowsThreads / kClusterQuads;

// What one block of a cluster shares; PoolRow [rows], scores and kv values [rows][kClusterChannels] follow it.
struct alignas(16) ManyRowsShared {
  float pooled[kHeadDim];  // gathered in the first block of the cluster
  float4 largest[kManyRowsThreads / 32][kClusterQuads];
  float sums[2][kClusterChannels];
  std::uint64_t gathered;  // barrier: `pooled` is complete
  std::uint32_t warp_amax[kRowQuads / 32];
};
constexpr std::size_t many_rows_shared_bytes(std::int32_t rows) {
  return sizeof(ManyRowsShared) +
         static_cast<std::size_t>(rows) * (sizeof(PoolRow) + 2 * kClusterChannels * sizeof(float));
}

// Scores and values of a block's channels in shared memory. Thread `quad` of group `group` moves and reads four
// channels of rows begin + group, begin + group + kRowGroups, ... until all are weighed.
struct ManyRowsTile {
  float4* scores;
  float4* values;
  int quad;
  int group;

  [[nodiscard]] __device__ float4& score(int row) const { return scores[row * kClusterQuads + quad]; }
  [[nodiscard]] __device__ float4& value(int row) const { return values[row * kClusterQuads + quad]; }

  // Starts all copies, the scores first.
  __device__ void start_loads(const PoolSource& source, const PoolRow* rows, int channel) const {
    const int column = channel + 4 * quad;
#pragma unroll 4
    for (int i = source.begin + group; i < source.end; i += kRowGroups) {
      __pipeline_memcpy_async(&score(i), rows[i].score + column, sizeof(float4));
    }
    __pipeline_commit();
#pragma unroll 4
    for (int i = source.begin + group; i < source.end; i += kRowGroups) {
      __pipeline_memcpy_async(&value(i), rows[i].kv + column, sizeof(float4));
    }
    __pipeline_commit();
  }

  // Completes the scores with their ape; `last_bias` is the last row's, the only fresh one of a decode step. Returns
  // the largest score of each of the thread's channels over its rows.
  __device__ float4 finish_scores(const PoolSource& source, int channel, const float4& last_bias) const {
    __pipeline_wait_prior(1);
    const float low = __int_as_float(static_cast<int>(0xff800000U));
    float4 largest = make_float4(low, low, low, low);
#pragma unroll 4
    for (int i = source.begin + group; i < source.end; i += kRowGroups) {
      float4 full = score(i);
      if (i >= source.fresh) {
        full = add_quads(full, i == source.end - 1 ? last_bias : load_quad(source.bias(i) + channel + 4 * quad));
        score(i) = full;
      }
      largest = max_quads(largest, full);
    }
    return largest;
  }

  // Weights in place of the scores, weighted values in place of the values.
  __device__ void weigh(const PoolSource& source, const float4& largest) const {
    __pipeline_wait_prior(0);
#pragma unroll 2
    for (int i = source.begin + group; i < source.end; i += kRowGroups) {
      const float4 full = score(i);
      const float4 weight =
          make_float4(exp_nonpositive(__fsub_rn(full.x, largest.x)), exp_nonpositive(__fsub_rn(full.y, largest.y)),
                      exp_nonpositive(__fsub_rn(full.z, largest.z)), exp_nonpositive(__fsub_rn(full.w, largest.w)));
      score(i) = weight;
      value(i) = multiply_quads(weight, value(i));
    }
  }
};

// The largest of each channel over the row groups of a warp.
__device__ inline float4 max_over_groups(float4 quad) {
#pragma unroll
  for (int distance = kClusterQuads; distance < 32; distance *= 2) {
    quad = max_quads(
        quad, make_float4(__shfl_xor_sync(kFullWarp, quad.x, distance), __shfl_xor_sync(kFullWarp, quad.y, distance),
                          __shfl_xor_sync(kFullWarp, quad.z, distance), __shfl_xor_sync(kFullWarp, quad.w, distance)));
  }
  return quad;
}

// Sum of one column of a tile in position order. Loads run ahead of the additions, which wait for each other.
__device__ inline float sum_column(const PoolSource& source, const float* column) {
  constexpr int kAhead = 16;
  const auto load = [&](int row) { return row < source.end ? column[row * kClusterChannels] : 0.0F; };
  float ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ahead[i] = load(source.begin + i);
  float sum = 0.0F;
  for (int first = source.begin; first < source.end; first += kAhead) {
    float current[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      current[i] = ahead[i];
      ahead[i] = load(first + kAhead + i);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) sum = __fadd_rn(sum, current[i]);  // + 0 after the last row changes no bit
  }
  return sum;
}

// Once per block, before the first row.
__device__ inline void prepare_many_rows(ManyRowsShared& shared) {
  if (threadIdx.x == 0) init_gather_barrier(&shared.gathered);
}

// Pools the row that `token` completes, the `count`-th of the cluster. All blocks of a cluster come here for the same
// tokens.
__device__ inline void compress_many_rows(const CompressParams& p, std::int64_t token, int count,
                                          ManyRowsShared& shared) {
  const int rank = static_cast<int>(cluster_block_rank());
  if (rank == 0 && threadIdx.x == 0) expect_gathered(&shared.gathered, p.input.dim * 4);
  // Arrival says: this block runs and has finished its last row, so `pooled` may be written from outside.
  arrive_at_cluster();
  const int thread = static_cast<int>(threadIdx.x);
  const TokenPlace place = token_place(p.step, token);
  const PoolSource source(p, place);
  auto* const scores = reinterpret_cast<float4*>(&shared + 1);
  float4* const values = scores + source.end * kClusterQuads;
  auto* const rows = reinterpret_cast<PoolRow*>(values + source.end * kClusterQuads);
  const ManyRowsTile tile{scores, values, thread % kClusterQuads, thread / kClusterQuads};
  const int first_channel = rank * kClusterChannels;
  for (int i = source.begin + thread; i < source.end; i += kManyRowsThreads) rows[i] = source.row(i);
  const float4 last_bias = load_quad(source.bias(source.end - 1) + first_channel + 4 * tile.quad);
  __syncthreads();
  wait_for_predecessors();

  tile.start_loads(source, rows, first_channel);
  const float4 own_largest = max_over_groups(tile.finish_scores(source, first_channel, last_bias));
  if (thread % 32 < kClusterQuads) shared.largest[thread / 32][tile.quad] = own_largest;
  __syncthreads();
  float4 largest = shared.largest[0][tile.quad];
#pragma unroll
  for (int warp = 1; warp < kManyRowsThreads / 32; ++warp) {
    largest = max_quads(largest, shared.largest[warp][tile.quad]);
  }
  tile.weigh(source, largest);
  __syncthreads();
  static_assert(kManyRowsThreads >= 2 * kClusterChannels && kClusterChannels % 32 == 0);
  const int channel = thread % kClusterChannels;
  if (thread < 2 * kClusterChannels) {
    const bool weighted = thread >= kClusterChannels;
    const float* column = reinterpret_cast<const float*>(weighted ? tile.values : tile.scores) + channel;
    shared.sums[weighted ? 1 : 0][channel] = sum_column(source, column);
  }
  __syncthreads();
  wait_for_cluster();
  if (thread < kClusterChannels) {
    const float value = round_value(__fdiv_rn(shared.sums[1][channel], shared.sums[0][channel]));
    gather_value(&shared.pooled[first_channel + channel], &shared.gathered, value);
  }
  const auto group = RowGroup<kRowQuads>::own();
  if (rank != 0 || group.index != 0) return;
  if (p.is_index_key) {
    if (__shfl_sync(kFullWarp, thread, 0) != 0) return;
    CompletedRow row(p, place, token, thread);
    row.locate(p);
    wait_for_gathered(&shared.gathered, count % 2);
    row.store_key(p, shared.pooled, thread);
  } else {
    CompletedRow row(p, place, token, thread);
    row.locate(p);
    wait_for_gathered(&shared.gathered, count % 2);
    row.store(p, shared.pooled, group, shared.warp_amax);
  }
}

}  // namespace dsv4rt::cuda
