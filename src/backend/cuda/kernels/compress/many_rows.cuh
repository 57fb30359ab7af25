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
inline constexpr int kClusterChannels = 32;  // of one block of a cluster: 16 blocks for a row of 512
inline constexpr int kClusterQuads = kClusterChannels / 4;
inline constexpr int kRowGroups = kManyRowsThreads / kClusterQuads;
using ManyRowsTile = PoolTile<kClusterQuads, kRowGroups>;

// Bytes of the tile of one block of a cluster.
constexpr std::size_t many_rows_tile_bytes(std::int32_t rows) {
  return std::size_t{2} * static_cast<std::size_t>(rows) * kClusterChannels * sizeof(float);
}

// Weights in place of the scores, weighted values in place of the values.
__device__ inline void weigh_tile(const PoolSource& source, const ManyRowsTile& tile, const float4& largest) {
  __pipeline_wait_prior(0);
#pragma unroll 2
  for (int i = source.begin + tile.group; i < source.end; i += kRowGroups) {
    const float4 weight = exp_of_difference(tile.score(i), largest);
    tile.score(i) = weight;
    tile.value(i) = multiply_quads(weight, tile.value(i));
  }
}

// Sum of one column of a tile in position order.
__device__ inline float sum_column(const PoolSource& source, const float* column) {
  float sum = 0.0F;
#pragma unroll 16
  for (int i = source.begin; i < source.end; ++i) sum = __fadd_rn(sum, column[i * kClusterChannels]);
  return sum;
}

// What one block of a cluster shares; its tile follows in memory.
struct alignas(16) ManyRowsShared {
  float4 pooled[kRowQuads];  // gathered in the first block of the cluster
  float4 largest[kRowGroups][kClusterQuads];
  float sums[2][kClusterChannels];
  std::uint32_t warp_amax[kRowQuads / 32];
};

// Pools the row that `token` completes. All blocks of a cluster come here for the same tokens.
__device__ inline void compress_many_rows(const CompressParams& p, std::int64_t token, ManyRowsShared& shared) {
  const auto cluster = cooperative_groups::this_cluster();
  // Arrival says: this block runs and has finished its last row, so `pooled` may be written from outside.
  auto ready = cluster.barrier_arrive();
  const int rank = static_cast<int>(cluster.block_rank());
  const int thread = static_cast<int>(threadIdx.x);
  const TokenPlace place = token_place(p.step, token);
  const PoolSource source(p, place);
  auto* const memory = reinterpret_cast<float4*>(&shared + 1);
  const ManyRowsTile tile{memory, memory + source.end * kClusterQuads, thread % kClusterQuads,
                          thread / kClusterQuads};
  const int first_channel = rank * kClusterChannels;
  const float4 last_bias = source.bias(source.end - 1, first_channel + 4 * tile.quad);
  wait_for_predecessors();

  tile.start_loads(source, first_channel);
  shared.largest[tile.group][tile.quad] = tile.finish_scores(source, first_channel, last_bias);
  __syncthreads();
  float4 largest = shared.largest[0][tile.quad];
#pragma unroll
  for (int group = 1; group < kRowGroups; ++group) largest = max_quads(largest, shared.largest[group][tile.quad]);
  weigh_tile(source, tile, largest);
  __syncthreads();
  static_assert(kManyRowsThreads >= 2 * kClusterChannels && kClusterChannels % 32 == 0);
  const int channel = thread % kClusterChannels;
  if (thread < 2 * kClusterChannels) {
    const bool weighted = thread >= kClusterChannels;
    const float* column = reinterpret_cast<const float*>(weighted ? tile.values : tile.scores) + channel;
    shared.sums[weighted ? 1 : 0][channel] = sum_column(source, column);
  }
  __syncthreads();
  cluster.barrier_wait(std::move(ready));
  if (thread < kClusterChannels) {
    float* gathered = cluster.map_shared_rank(reinterpret_cast<float*>(shared.pooled), 0);
    const float value = __fdiv_rn(shared.sums[1][channel], shared.sums[0][channel]);
    gathered[first_channel + channel] = round_to_bf16(value);
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
