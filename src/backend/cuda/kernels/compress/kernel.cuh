// The compressor: softmax-pools the block that a token completes into a row, finishes and encodes it.
//
// Per channel the maximum comes first, then weights and weighted values are summed in position order, so a
// row's bytes are those of the CPU backend up to the sine and cosine of the rotation. Two kernels pool:
// few rows (CSA) stay in the registers of one block; many rows (HCA) are spread by channels over a cluster,
// because a step waits for them and a single multiprocessor takes several microseconds to read them.
#pragma once

#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include <cstdint>
#include <utility>

#include "backend/cuda/kernels/common/exp.cuh"
#include "backend/cuda/kernels/common/hadamard.cuh"
#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/cuda/kernels/common/row_encode.cuh"
#include "backend/cuda/kernels/compress/pool_source.cuh"

namespace dsv4rt::cuda {

inline constexpr int kFewRows = 8;
inline constexpr int kManyRowsThreads = 128;
inline constexpr int kClusterChannels = 64;  // of one block of a cluster
inline constexpr int kClusterQuads = kClusterChannels / 4;
inline constexpr int kRowGroups = kManyRowsThreads / kClusterQuads;

__device__ inline bool completes_row(const CompressParams& p, std::int64_t token) {
  return p.step.valid_mask[p.input.ratio_class][token] != 0 && p.step.token_sequence[token] >= 0;
}

// Pooled values [dim] in shared memory, rounded to BF16 -> the row in the cache. Called by the whole block,
// after a barrier; threads from dim / 4 on only take part in barriers.
__device__ inline void finish_row(const CompressParams& p, const TokenPlace& place, std::int64_t token,
                                  const float* pooled, std::uint32_t* warp_amax) {
  const int dim = p.input.dim;
  const int quad = static_cast<int>(threadIdx.x);
  const std::int32_t row = p.step.row_index[p.input.ratio_class][token];
  float v[4] = {};
  if (quad < dim / 4) {
    if (p.norm_weight != nullptr) {
      normalize_quad(pooled, dim, p.norm_weight, p.eps, quad, v);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = pooled[4 * quad + i];
    }
    const std::int32_t offset = p.anchor == Profile::RopeAnchor::kFirstToken ? 0 : p.input.ratio - 1;
    rotate_quad(p.rope, row * p.input.ratio + offset, dim, quad, v);
    __syncwarp();
    if (p.hadamard) hadamard_bf16(v);
  }
  const BlockShape& shape = p.rows.shape;
  const std::int32_t block = p.rows.block_table[place.slot * p.rows.table_stride + row / shape.rows];
  std::byte* bytes = p.rows.blocks + block * shape.block_bytes;
  if (!p.is_index_key) {
    encode_row_quad(p.row_format, shape, v, quad, bytes, row % shape.rows, warp_amax);
  } else if (quad < kKeyQuads) {
    encode_key_quad(p.key_format, shape, v, quad, bytes, row % shape.rows);
  }
}

struct QuadSums {
  float4 weight;    // sum(exp(s - max))
  float4 weighted;  // sum(exp(s - max) * kv)
};

__device__ inline float4 exp_of_difference(const float4& score, const float4& largest) {
  return make_float4(exp_unfused(__fsub_rn(score.x, largest.x)), exp_unfused(__fsub_rn(score.y, largest.y)),
                     exp_unfused(__fsub_rn(score.z, largest.z)), exp_unfused(__fsub_rn(score.w, largest.w)));
}

// Blocks of at most kFewRows rows. A block of dim / 4 threads per token, four channels a thread.
__global__ __launch_bounds__(kRowQuads) void compress_few_rows_kernel(const __grid_constant__ CompressParams p) {
  __shared__ float4 pooled[kRowQuads];
  __shared__ std::uint32_t warp_amax[kRowQuads / 32];
  const std::int64_t token = blockIdx.x;
  if (!completes_row(p, token)) return;
  const TokenPlace place = token_place(p.step, token);
  const PoolSource source(p, place);
  const int quad = static_cast<int>(threadIdx.x);

  // All loads before the first use.
  float4 score[kFewRows];
  float4 kv[kFewRows];
  float4 bias[kFewRows];
#pragma unroll
  for (int i = 0; i < kFewRows; ++i) {
    if (i < source.begin() || i >= source.end()) continue;
    const PoolRow row = source.row(i, 4 * quad);
    score[i] = load_quad(row.score);
    kv[i] = load_quad(row.kv);
    bias[i] = row.bias == nullptr ? float4{} : load_quad(row.bias);
    // A stored score holds its ape; adding 0 keeps it (the sign of a zero does not reach the result).
  }
  const float low = __int_as_float(static_cast<int>(0xff800000U));
  float4 largest = make_float4(low, low, low, low);
#pragma unroll
  for (int i = 0; i < kFewRows; ++i) {
    if (i < source.begin() || i >= source.end()) continue;
    score[i] = add_quads(score[i], bias[i]);
    largest = max_quads(largest, score[i]);
  }
  QuadSums sums{};
#pragma unroll
  for (int i = 0; i < kFewRows; ++i) {
    if (i < source.begin() || i >= source.end()) continue;
    const float4 weight = exp_of_difference(score[i], largest);
    sums.weight = add_quads(sums.weight, weight);
    sums.weighted = add_quads(sums.weighted, multiply_quads(weight, kv[i]));
  }
  pooled[quad] = make_float4(round_to_bf16(__fdiv_rn(sums.weighted.x, sums.weight.x)),
                             round_to_bf16(__fdiv_rn(sums.weighted.y, sums.weight.y)),
                             round_to_bf16(__fdiv_rn(sums.weighted.z, sums.weight.z)),
                             round_to_bf16(__fdiv_rn(sums.weighted.w, sums.weight.w)));
  __syncthreads();
  finish_row(p, place, token, reinterpret_cast<const float*>(pooled), warp_amax);
}

// The tile of one block of a cluster: [rows][kClusterChannels] scores, then as many kv values.
constexpr std::size_t many_rows_shared_bytes(std::int32_t rows) {
  return std::size_t{2} * static_cast<std::size_t>(rows) * kClusterChannels * sizeof(float);
}

// Fills the block's tile: scores with their ape, kv as they are. Returns the largest score of each of the
// thread's four channels over the rows that it loaded; a thread later touches those rows only.
__device__ inline float4 load_tile(const PoolSource& source, int channel, float4* scores, float4* values) {
  const int quad = static_cast<int>(threadIdx.x) % kClusterQuads;
  const int group = static_cast<int>(threadIdx.x) / kClusterQuads;
#pragma unroll 4
  for (int i = source.begin() + group; i < source.end(); i += kRowGroups) {
    const PoolRow row = source.row(i, channel + 4 * quad);
    __pipeline_memcpy_async(scores + i * kClusterQuads + quad, row.score, sizeof(float4));
    __pipeline_memcpy_async(values + i * kClusterQuads + quad, row.kv, sizeof(float4));
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
  const float low = __int_as_float(static_cast<int>(0xff800000U));
  float4 largest = make_float4(low, low, low, low);
#pragma unroll 4
  for (int i = source.begin() + group; i < source.end(); i += kRowGroups) {
    float4& score = scores[i * kClusterQuads + quad];
    const PoolRow row = source.row(i, channel + 4 * quad);
    if (row.bias != nullptr) score = add_quads(score, load_quad(row.bias));
    largest = max_quads(largest, score);
  }
  return largest;
}

// Weights in place of the scores, weighted values in place of the values.
__device__ inline void weigh_tile(const PoolSource& source, const float4& largest, float4* scores, float4* values) {
  const int quad = static_cast<int>(threadIdx.x) % kClusterQuads;
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
#pragma unroll 8
  for (int i = source.begin(); i < source.end(); ++i) sum = __fadd_rn(sum, column[i * kClusterChannels]);
  return sum;
}

// What one block of a cluster shares besides its tile.
struct ManyRowsShared {
  float pooled[kHeadDim];  // gathered in the first block of the cluster
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
    float* gathered = cluster.map_shared_rank(shared.pooled, 0);
    const float value = __fdiv_rn(shared.sums[1][channel], shared.sums[0][channel]);
    gathered[rank * kClusterChannels + channel] = round_to_bf16(value);
  }
  cluster.sync();
  if (rank == 0) finish_row(p, place, token, shared.pooled, shared.warp_amax);
}

// Blocks of any number of rows. A cluster of dim / kClusterChannels blocks pools the rows that complete among
// `tokens_per_cluster` consecutive tokens, one after the other. Each block pools its channels, the first one
// gathers them through distributed shared memory and finishes the row. How many tokens a cluster looks at
// changes no value.
__global__ __launch_bounds__(kManyRowsThreads) void compress_many_rows_kernel(const __grid_constant__ CompressParams p,
                                                                              std::int32_t tokens_per_cluster) {
  extern __shared__ float4 tile[];
  __shared__ ManyRowsShared shared;
  const std::int64_t first = std::int64_t{blockIdx.x / (p.input.dim / kClusterChannels)} * tokens_per_cluster;
  for (std::int64_t token = first; token < first + tokens_per_cluster && token < p.step.counts.tokens; ++token) {
    if (completes_row(p, token)) compress_many_rows(p, token, tile, shared);
  }
}

// A block per token moves kv and score + ape of the sequence's last ring_rows tokens into the ring.
inline constexpr int kStateStoreThreads = 128;

__global__ __launch_bounds__(kStateStoreThreads) void state_store_kernel(const __grid_constant__ StateStoreParams p) {
  const std::int64_t token = blockIdx.x;
  const TokenPlace place = token_place(p.step, token);
  if (!place.real || token < std::int64_t{place.end_token} - p.state.ring_rows) return;
  const CompressorInput& input = p.input;
  const std::int32_t width = state_width(input);
  float* row = state_row(p.state, width, place.slot, place.position % p.state.ring_rows);
  const float* kv = input.kv + token * input.stride;
  const float* score = input.score + token * input.stride;
  const float* ape = input.ape + std::int64_t{place.position % input.ratio} * width;
  for (int i = 4 * static_cast<int>(threadIdx.x); i < width; i += 4 * kStateStoreThreads) {
    *reinterpret_cast<float4*>(row + i) = load_quad(kv + i);
    *reinterpret_cast<float4*>(row + width + i) = add_quads(load_quad(score + i), load_quad(ape + i));
  }
}

}  // namespace dsv4rt::cuda
