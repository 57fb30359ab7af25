// Blocks of at most kFewRows rows: a row's dim / 4 threads pool four channels each.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/compress/completed_row.cuh"

namespace dsv4rt::cuda {

inline constexpr int kFewRows = 8;

// Per channel sum(exp(s - max) * kv) / sum(exp(s - max)) over the rows in position order, rounded to BF16. The
// tile has one group: a thread sees all rows of its channels. Called after wait_for_predecessors().
template <int kQuads>
__device__ inline float4 pool_few_rows(const PoolSource& source, const PoolTile<kQuads, 1>& tile,
                                       const float4& last_bias) {
  tile.start_loads(source, 0);
  const float4 largest = tile.finish_scores(source, 0, last_bias);
  __pipeline_wait_prior(0);
  float4 weights{};
  float4 weighted{};
#pragma unroll 2
  for (int i = source.begin; i < source.end; ++i) {
    const float4 weight = exp_of_difference(tile.score(i), largest);
    weights = add_quads(weights, weight);
    weighted = add_quads(weighted, multiply_quads(weight, tile.value(i)));
  }
  return make_float4(
      round_to_bf16(__fdiv_rn(weighted.x, weights.x)), round_to_bf16(__fdiv_rn(weighted.y, weights.y)),
      round_to_bf16(__fdiv_rn(weighted.z, weights.z)), round_to_bf16(__fdiv_rn(weighted.w, weights.w)));
}

struct FewRowsShared {
  float4 scores[kFewRows][kRowQuads];
  float4 values[kFewRows][kRowQuads];
  float4 pooled[kRowQuads];
  std::uint32_t warp_amax[kRowQuads / 32];
};

struct IndexKeyShared {
  float4 scores[kFewRows][kKeyQuads];
  float4 values[kFewRows][kKeyQuads];
  float4 pooled[kKeyQuads];
};

// The row that `token` completes, for a block of kRowQuads threads.
__device__ inline void compress_few_rows(const CompressParams& p, std::int64_t token, FewRowsShared& shared) {
  const int quad = static_cast<int>(threadIdx.x);
  const TokenPlace place = token_place(p.step, token);
  const PoolSource source(p, place);
  const PoolTile<kRowQuads, 1> tile{shared.scores[0], shared.values[0], quad, 0};
  const float4 last_bias = source.bias(source.end - 1, 4 * quad);
  CompletedRow row(p, place, token, quad);
  wait_for_predecessors();
  row.locate(p);
  const float4 pooled = pool_few_rows(source, tile, last_bias);
  __syncthreads();  // the previous token's row has been read
  shared.pooled[quad] = pooled;
  __syncthreads();
  row.store(p, reinterpret_cast<const float*>(shared.pooled), quad, shared.warp_amax);
}

// The index key that `token` completes, for a warp; `shared` is the warp's own.
__device__ inline void compress_index_key(const CompressParams& p, std::int64_t token, IndexKeyShared& shared) {
  const int quad = static_cast<int>(threadIdx.x) % 32;
  const TokenPlace place = token_place(p.step, token);
  const PoolSource source(p, place);
  const PoolTile<kKeyQuads, 1> tile{shared.scores[0], shared.values[0], quad, 0};
  const float4 last_bias = source.bias(source.end - 1, 4 * quad);
  CompletedRow row(p, place, token, quad);
  wait_for_predecessors();
  row.locate(p);
  const float4 own = pool_few_rows(source, tile, last_bias);
  __syncwarp();
  shared.pooled[quad] = own;
  __syncwarp();
  row.store(p, reinterpret_cast<const float*>(shared.pooled), quad, nullptr);
}

}  // namespace dsv4rt::cuda
