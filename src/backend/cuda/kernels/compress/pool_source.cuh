// Tells which rows a compressed row is pooled from, and where they lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/common/token_position.cuh"
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

// Where a position's values lie.
struct PoolRow {
  const float* kv;
  const float* score;
};

// The rows of the block that a token completes, numbered in position order: [begin, end). With an overlap rows
// [0, ratio) are the previous block, of which a sequence's first block has none. Rows before `fresh` come from the
// ring, where their score contains the ape; the others are fresh projections. A row's address is
// worked out once, by one thread for all, before the predecessor kernel has finished.
class PoolSource {
 public:
  __device__ PoolSource(const CompressParams& params, const TokenPosition& place) {
    const CompressorInput& input = params.input;
    end = pooled_rows(input);
    const std::int32_t first_position = place.position + 1 - end;  // negative without a previous block
    begin = input.overlap && first_position < 0 ? input.ratio : 0;
    fresh = max(place.start - first_position, 0);
    current_ = input.overlap ? input.ratio : end;
    dim_ = input.dim;
    width_ = state_width(input);
    ring_rows_ = params.state.ring_rows;
    // The ring holds at least the pooled rows, and first_position is no less than their negative.
    first_ring_row_ = (first_position + ring_rows_) % ring_rows_;
    ring_ = state_row(params.state, width_, place.slot, 0);
    stride_ = static_cast<std::int32_t>(input.stride);
    const std::int64_t first_offset = std::int64_t{place.token_of(first_position)} * input.stride;
    kv_ = input.kv + first_offset;
    score_ = input.score + first_offset;
    ape_ = input.ape;
  }

  int begin = 0;
  int end = 0;
  int fresh = 0;

  // Where kv and score of row `row` lie, from channel 0 on. There is no branch, so that many rows load at once.
  [[nodiscard]] __device__ PoolRow row(int row) const {
    const bool is_fresh = row >= fresh;
    std::int32_t ring_row = first_ring_row_ + row;
    ring_row = ring_row >= ring_rows_ ? ring_row - ring_rows_ : ring_row;
    const std::int64_t offset =
        std::int64_t{is_fresh ? row : ring_row} * (is_fresh ? stride_ : 2 * width_) + (row >= current_ ? dim_ : 0);
    return {.kv = (is_fresh ? kv_ : ring_) + offset, .score = (is_fresh ? score_ : ring_ + width_) + offset};
  }
  // Values from row to row where rows [first, first + count) exist and lie evenly; 0 where they do not.
  [[nodiscard]] __device__ int even_step(int first, int count) const {
    const int past = first + count;
    const int ring_row = first_ring_row_ + first;
    const bool stored = past <= fresh && (ring_row >= ring_rows_ || ring_row + count <= ring_rows_);
    const bool same_block = past <= current_ || first >= current_;
    if (first < begin || past > end || !same_block) return 0;
    return stored ? 2 * width_ : first >= fresh ? stride_ : 0;
  }
  // The ape that is added to the score of a fresh row. Blocks start at multiples of the ratio.
  [[nodiscard]] __device__ const float* bias(int row) const {
    const bool current = row >= current_;
    return ape_ + std::int64_t{current ? row - current_ : row} * width_ + (current ? dim_ : 0);
  }

 private:
  const float* ring_;
  const float* kv_;  // kv of row 0 as if it were fresh; rows before `fresh` may lie before the array
  const float* score_;
  const float* ape_;
  std::int32_t current_;  // first row of the current block, where there is a previous one
  std::int32_t dim_, width_, stride_, ring_rows_, first_ring_row_;
};

__device__ inline float2 load_pair(const float* at) {
  return *reinterpret_cast<const float2*>(at);
}

__device__ inline float4 load_quad(const float* at) {
  return *reinterpret_cast<const float4*>(at);
}

__device__ inline float4 add_quads(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

}  // namespace dsv4rt::cuda
