// Which rows a compressed row is pooled from, and where they lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/common/token_place.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

// Values of a state or projection row: kv columns, as many score columns.
__host__ __device__ constexpr std::int32_t state_width(const CompressorInput& input) {
  return input.overlap ? 2 * input.dim : input.dim;
}

// The most rows that a block pools: the previous block counts with an overlap.
__host__ __device__ constexpr std::int32_t pooled_rows(const CompressorInput& input) {
  return input.overlap ? 2 * input.ratio : input.ratio;
}

// kv of ring row `row`; its score + ape follow `width` values later.
__device__ inline float* state_row(const StateRing& state, std::int32_t width, std::int32_t slot, std::int32_t row) {
  return reinterpret_cast<float*>(state.base + slot * state.slot_bytes) + std::int64_t{row} * 2 * width;
}

// One position's values.
struct PoolRow {
  const float* kv = nullptr;
  const float* score = nullptr;
  const float* bias = nullptr;  // added to the score; null: the score contains it
};

// The rows of the block that a token completes, numbered in position order: [begin, end). With an overlap
// rows [0, ratio) are the previous block, of which a sequence's first block has none.
class PoolSource {
 public:
  __device__ PoolSource(const CompressParams& params, const TokenPlace& place) : params_(params), place_(place) {
    const CompressorInput& input = params.input;
    end_ = pooled_rows(input);
    first_position_ = place.position + 1 - end_;
    begin_ = input.overlap && first_position_ < 0 ? input.ratio : 0;
    // The ring holds at least the pooled rows, and first_position_ is no less than their negative.
    first_ring_row_ = (first_position_ + params.state.ring_rows) % params.state.ring_rows;
  }

  [[nodiscard]] __device__ int begin() const { return begin_; }
  [[nodiscard]] __device__ int end() const { return end_; }

  // Row `row` from channel `channel` on: fresh projections for positions of the step, the ring before.
  [[nodiscard]] __device__ PoolRow row(int row, int channel) const {
    const CompressorInput& input = params_.input;
    const std::int32_t width = state_width(input);
    const bool current = input.overlap && row >= input.ratio;
    const std::int32_t column = (current ? input.dim : 0) + channel;
    const std::int32_t position = first_position_ + row;
    if (position >= place_.start) {
      const std::int64_t offset = place_.token_of(position) * input.stride + column;
      const std::int32_t ape_row = current ? row - input.ratio : row;  // blocks start at multiples of the ratio
      return {.kv = input.kv + offset, .score = input.score + offset, .bias = input.ape + ape_row * width + column};
    }
    std::int32_t ring_row = first_ring_row_ + row;
    if (ring_row >= params_.state.ring_rows) ring_row -= params_.state.ring_rows;
    const float* stored = state_row(params_.state, width, place_.slot, ring_row) + column;
    return {.kv = stored, .score = stored + width, .bias = nullptr};
  }

 private:
  const CompressParams& params_;
  TokenPlace place_;
  int begin_ = 0;
  int end_ = 0;
  std::int32_t first_position_ = 0;  // of row 0; negative where the previous block does not exist
  std::int32_t first_ring_row_ = 0;  // of row 0
};

__device__ inline float4 load_quad(const float* at) { return *reinterpret_cast<const float4*>(at); }

__device__ inline float4 add_quads(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

__device__ inline float4 max_quads(const float4& a, const float4& b) {
  return make_float4(fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w));
}

__device__ inline float4 multiply_quads(const float4& a, const float4& b) {
  return make_float4(__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z), __fmul_rn(a.w, b.w));
}

}  // namespace dsv4rt::cuda
