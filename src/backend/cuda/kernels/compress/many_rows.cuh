// Blocks of any number of rows: a cluster of blocks pools a row, each block its channels, because a step waits for
// the row and a single multiprocessor takes several microseconds to read its 128 x 512 pairs. The first block of
// the cluster gathers the channels through distributed shared memory and finishes the row.
#pragma once

#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include <cstdint>
#include <utility>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/compress/completed_row.cuh"

namespace dsv4rt::cuda {

inline constexpr int kManyRowsThreads = 128;
inline constexpr int kClusterChannels = 64;  // of one block of a cluster
inline constexpr int kClusterQuads = kClusterChannels / 4;
inline constexpr int kRowGroups = kManyRowsThreads / kClusterQuads;

// The tile of one block of a cluster: [rows][kClusterChannels] scores, then as many kv values.
constexpr std::size_t many_rows_tile_bytes(std::int32_t rows) {
  return std::size_t{2} * static_cast<std::size_t>(rows) * kClusterChannels * sizeof(float);
}

// Fills the block's tile: scores with their ape, kv as they are. Returns the largest score of each of the
// thread's four channels over the rows that it loaded; a thread later touches those rows only.
__device__ inline float4 load_tile(const PoolSource& source, int channel, float4* scores, float4* values) {
  const int quad = static_cast<int>(threadIdx.x) % kClusterQuads;
  const int group = static_cast<int>(threadIdx.x) / kClusterQuads;
#pragma unroll 4
  for (int i = source.begin() + group; i < source.end(); i += kRowGroups) {
    __pipeline_memcpy_async(scores + i * kClusterQuads + quad, source.row(i, channel + 4 * quad).score,
                            sizeof(float4));
  }
  __pipeline_commit();
#pragma unroll 4
  for (int i = source.begin() + group; i < source.end(); i += kRowGroups) {
    __pipeline_memcpy_async(values + i * kClusterQuads + quad, source.row(i, channel + 4 * quad).kv, sizeof(float4));
  }
  __pipeline_commit();
  __pipeline_wait_prior(1);
  const float low = __int_as_float(static_cast<int>(0xff800000U));
  float4 largest = make_float4(low, low, low, low);
#pragma unroll 4
  for (int i = source.begin() + group; i < source.end(); i += kRowGroups) {
    float4 score = scores[i * kClusterQuads + quad];
    const PoolRow row = source.row(i, channel + 4 * quad);
    if (row.bias != nullptr) {
      score = add_quads(score, load_quad(row.bias));
      scores[i * kClusterQuads + quad] = score;
    }
    largest = max_quads(largest, score);
  }
  return largest;
}

// Weights in place of the scores, weighted values in place of the values.
__device__ inline void weigh_tile(const PoolSource& source, const float4& largest, float4* scores, float4* values) {
  const int quad = static_cast<int>(threadIdx.x) % kClusterQuads;
  __pipeline_wait_prior(0);
#pragma unroll 2
  for (int i = source.begin() + static_cast<int>(threadIdx.x) / kClusterQuads; i < source.end(); i += kRowGroups) {
    const int at = i * kClusterQuads + quad;
    const float4 weight = exp_of_difference(scores[at], largest);
    scores[at] = weight;
    values[at] = multiply_quads(weight, values[at]);
  }
}

// Sum of one column of a tile in position order.
__device__ inline float sum_column(const PoolSource& source, const float* column) {
  float sum = 0.0F;
#pragma unroll 16
  for (int i = source.begin(); i < source.end(); ++i) sum = __fadd_rn(sum, column[i * kClusterChannels]);
  return sum;
}

// What one block of a cluster shares besides its tile.
struct ManyRowsShared {
  float4 pooled[kRowQuads];  // gathered in the first block of the cluster
  float4 largest[kRowGroups][kClusterQuads];
  float sums[2][kClusterChannels];
  std::uint32_t warp_amax[kRowQuads / 32];
};

// Pools the row that `token` completes. All blocks of a cluster come here for the same tokens.
__device__ inline void compress_many_rows(const CompressParams& p, std::int64_t token, float4* tile,
                                          ManyRowsShared& shared) {
  const auto cluster = cooperative_groups::this_cluster();
  // Arrival says: this block runs and has finished its last row, so `pooled` may be written from outside.
  auto ready = cluster.barrier_arrive();
  const int rank = static_cast<int>(cluster.block_rank());
  const int thread = static_cast<int>(threadIdx.x);
  const int quad = thread % kClusterQuads;
  const TokenPlace place = token_place(p.step, token);
  const PoolSource source(p, place);
  float4* scores = tile;
  float4* values = tile + source.end() * kClusterQuads;
  wait_for_predecessors();

  shared.largest[thread / kClusterQuads][quad] = load_tile(source, rank * kClusterChannels, scores, values);
  __syncthreads();
  float4 largest = shared.largest[0][quad];
#pragma unroll
  for (int group = 1; group < kRowGroups; ++group) largest = max_quads(largest, shared.largest[group][quad]);
  weigh_tile(source, largest, scores, values);
  __syncthreads();
  static_assert(kManyRowsThreads == 2 * kClusterChannels);
  const int channel = thread % kClusterChannels;
  const bool weighted = thread >= kClusterChannels;
  const float* column = reinterpret_cast<const float*>(weighted ? values : scores) + channel;
  shared.sums[weighted ? 1 : 0][channel] = sum_column(source, column);
  __syncthreads();
  cluster.barrier_wait(std::move(ready));
  if (!weighted) {
    float* gathered = cluster.map_shared_rank(reinterpret_cast<float*>(shared.pooled), 0);
    const float value = __fdiv_rn(shared.sums[1][channel], shared.sums[0][channel]);
    gathered[rank * kClusterChannels + channel] = round_to_bf16(value);
  }
  auto complete = cluster.barrier_arrive();
  if (rank != 0 || thread >= p.input.dim / 4) {
    cluster.barrier_wait(std::move(complete));
    return;
  }
  CompletedRow row(p, place, token, thread);
  row.locate(p);
  cluster.barrier_wait(std::move(complete));
  row.store(p, reinterpret_cast<const float*>(shared.pooled), thread, shared.warp_amax);
}

}  // namespace dsv4rt::cuda
