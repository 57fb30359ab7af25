// The step's projections into the state rings.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/row_group.cuh"
#include "backend/cuda/kernels/compress/pool_source.cuh"

namespace dsv4rt::cuda {

// Of the tokens first .. first + count - 1, at most 32, those that are among their sequence's last ring_rows, a bit
// each. Called by whole warps.
__device__ inline unsigned stored_tokens(const CompressParams& p, std::int64_t first, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t token = first + lane;
  bool stored = false;
  if (lane < count && token < p.step.counts.tokens) {
    const TokenPosition place = token_position(p.step, token);
    stored = place.real && token >= std::int64_t{place.end_token} - p.state.ring_rows;
  }
  return __ballot_sync(kFullWarp, stored);
}

// kv and score + ape of `token`, one of stored_tokens(), by a block.
__device__ inline void store_state_row(const CompressParams& p, std::int64_t token) {
  const TokenPosition place = token_position(p.step, token);
  const CompressorInput& input = p.input;
  const StateRing& state = p.state;
  const std::int32_t width = state_width(input);
  float* row = state_row(state, width, place.slot, place.position % state.ring_rows);
  const float* kv = input.kv + token * input.stride;
  const float* score = input.score + token * input.stride;
  const float* ape = input.ape + std::int64_t{place.position % input.ratio} * width;
  have_ready(row);
  have_ready(kv);
  have_ready(score);
  have_ready(ape);
  wait_for_predecessors();
#pragma unroll 2
  for (int i = 4 * static_cast<int>(threadIdx.x); i < width; i += 4 * kBlockThreads) {
    const float4 values = load_quad(kv + i);
    const float4 sum = add_quads(load_quad(score + i), load_quad(ape + i));
    *reinterpret_cast<float4*>(row + i) = values;
    *reinterpret_cast<float4*>(row + width + i) = sum;
  }
}

// All of them, by a block.
__device__ inline void store_state_rows(const CompressParams& p, std::int64_t first, int count) {
  for (unsigned left = stored_tokens(p, first, count); left != 0; left &= left - 1) {
    store_state_row(p, first + __ffs(static_cast<int>(left)) - 1);
  }
}

}  // namespace dsv4rt::cuda
