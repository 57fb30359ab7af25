// The step's projections into the state rings.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/compress/pool_source.cuh"

namespace dsv4rt::cuda {

// kv and score + ape of `token`, if it is one of its sequence's last ring_rows tokens, by `threads` threads.
__device__ inline void store_state_row(const CompressParams& p, std::int64_t token, int thread, int threads) {
  if (token >= p.step.counts.tokens) return;
  const TokenPosition place = token_position(p.step, token);
  const CompressorInput& input = p.input;
  const StateRing& state = p.state;
  if (!place.real || token < std::int64_t{place.end_token} - state.ring_rows) return;
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
  for (int i = 4 * thread; i < width; i += 4 * threads) {
    const float4 values = load_quad(kv + i);
    const float4 sum = add_quads(load_quad(score + i), load_quad(ape + i));
    *reinterpret_cast<float4*>(row + i) = values;
    *reinterpret_cast<float4*>(row + width + i) = sum;
  }
}

}  // namespace dsv4rt::cuda
