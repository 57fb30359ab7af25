// Blocks of at most kFewRows rows: a row's dim / 4 threads pool four channels each in registers.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/compress/completed_row.cuh"

namespace dsv4rt::cuda {

inline constexpr int kFewRows = 8;

// Per channel sum(exp(s - max) * kv) / sum(exp(s - max)) over the rows in position order, rounded to BF16.
__device__ inline float4 pool_few_rows(const PoolSource& source, int quad) {
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
    // A stored score holds its ape; adding 0 keeps it (the sign of a zero does not reach the result).
    bias[i] = row.bias == nullptr ? float4{} : load_quad(row.bias);
  }
  const float low = __int_as_float(static_cast<int>(0xff800000U));
  float4 largest = make_float4(low, low, low, low);
#pragma unroll
  for (int i = 0; i < kFewRows; ++i) {
    if (i < source.begin() || i >= source.end()) continue;
    score[i] = add_quads(score[i], bias[i]);
    largest = max_quads(largest, score[i]);
  }
  float4 weights{};
  float4 weighted{};
#pragma unroll
  for (int i = 0; i < kFewRows; ++i) {
    if (i < source.begin() || i >= source.end()) continue;
    const float4 weight = exp_of_difference(score[i], largest);
    weights = add_quads(weights, weight);
    weighted = add_quads(weighted, multiply_quads(weight, kv[i]));
  }
  return make_float4(
      round_to_bf16(__fdiv_rn(weighted.x, weights.x)), round_to_bf16(__fdiv_rn(weighted.y, weights.y)),
      round_to_bf16(__fdiv_rn(weighted.z, weights.z)), round_to_bf16(__fdiv_rn(weighted.w, weights.w)));
}

struct FewRowsShared {
  float4 pooled[kRowQuads];
  std::uint32_t warp_amax[kRowQuads / 32];
};

// The row that `token` completes, for a block of kRowQuads threads.
__device__ inline void compress_few_rows(const CompressParams& p, std::int64_t token, FewRowsShared& shared) {
  const int quad = static_cast<int>(threadIdx.x);
  const TokenPlace place = token_place(p.step, token);
  const PoolSource source(p, place);
  CompletedRow row(p, place, token, quad);
  wait_for_predecessors();
  row.locate(p);
  const float4 pooled = pool_few_rows(source, quad);
  __syncthreads();  // the previous token's row has been read
  shared.pooled[quad] = pooled;
  __syncthreads();
  row.store(p, reinterpret_cast<const float*>(shared.pooled), quad, shared.warp_amax);
}

// The index key that `token` completes, for a warp; `pooled` [kKeyQuads] is the warp's own.
__device__ inline void compress_index_key(const CompressParams& p, std::int64_t token, float4* pooled) {
  const int quad = static_cast<int>(threadIdx.x) % 32;
  const TokenPlace place = token_place(p.step, token);
  const PoolSource source(p, place);
  CompletedRow row(p, place, token, quad);
  wait_for_predecessors();
  row.locate(p);
  const float4 own = pool_few_rows(source, quad);
  __syncwarp();
  pooled[quad] = own;
  __syncwarp();
  row.store(p, reinterpret_cast<const float*>(pooled), quad, nullptr);
}

}  // namespace dsv4rt::cuda
