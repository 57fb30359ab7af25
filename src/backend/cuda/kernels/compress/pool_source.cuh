// Which rows a compressed row is pooled from, and where they lie.
#pragma once

#include <cuda_pipeline.h>

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

// The rows of the block that a token completes, numbered in position order: [begin, end). With an overlap rows
// [0, ratio) are the previous block, of which a sequence's first block has none. Rows before `fresh` come from the
// ring, where their score contains the ape; the others are fresh projections. Everything that depends on the
// token alone is worked out here: what is left per row is short, because few threads wait for it.
class PoolSource {
 public:
  __device__ PoolSource(const CompressParams& params, const TokenPlace& place) {
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

  // Where kv and score of row `row` lie, from channel `channel` on.
  struct Row {
    const float* kv;
    const float* score;
  };
  [[nodiscard]] __device__ Row row(int row, int channel) const {
    const std::int32_t column = (row >= current_ ? dim_ : 0) + channel;
    if (row >= fresh) {
      const std::int64_t offset = std::int64_t{row} * stride_ + column;
      return {.kv = kv_ + offset, .score = score_ + offset};
    }
    std::int32_t ring_row = first_ring_row_ + row;
    ring_row = ring_row >= ring_rows_ ? ring_row - ring_rows_ : ring_row;
    const float* stored = ring_ + std::int64_t{ring_row} * (2 * width_) + column;
    return {.kv = stored, .score = stored + width_};
  }
  // The ape that is added to the score of a fresh row. Blocks start at multiples of the ratio.
  [[nodiscard]] __device__ float4 bias(int row, int channel) const {
    const bool current = row >= current_;
    const std::int32_t ape_row = current ? row - current_ : row;
    return *reinterpret_cast<const float4*>(ape_ + ape_row * width_ + (current ? dim_ : 0) + channel);
  }

 private:
  const float* ring_;
  const float* kv_;     // of row 0 as if it were fresh; rows before `fresh` may lie before the array
  const float* score_;
  const float* ape_;
  std::int32_t current_;  // first row of the current block, where there is a previous one
  std::int32_t dim_, width_, stride_, ring_rows_, first_ring_row_;
};

__device__ inline float4 load_quad(const float* at) { return *reinterpret_cast<const float4*>(at); }

__device__ inline float4 add_quads(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

__device__ inline float4 max_quads(const float4& a, const float4& b) {
  return make_float4(fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w));
}

__device__ inline float4 lowest_quad() {
  const float low = __int_as_float(static_cast<int>(0xff800000U));
  return make_float4(low, low, low, low);
}

__device__ inline float4 multiply_quads(const float4& a, const float4& b) {
  return make_float4(__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z), __fmul_rn(a.w, b.w));
}

// A tile of pooled rows in shared memory: [end][kQuads] scores and as many kv values, for channels from `channel`
// on. Thread `quad` of group `group` of kGroups moves and reads its own columns and rows only:
// begin + group, begin + group + kGroups, ...
template <int kQuads, int kGroups>
struct PoolTile {
  float4* scores;
  float4* values;
  int quad;
  int group;

  [[nodiscard]] __device__ float4& score(int row) const { return scores[row * kQuads + quad]; }
  [[nodiscard]] __device__ float4& value(int row) const { return values[row * kQuads + quad]; }

  // Starts all copies, the scores first.
  __device__ void start_loads(const PoolSource& source, int channel) const {
    const int column = channel + 4 * quad;
#pragma unroll 4
    for (int i = source.begin + group; i < source.end; i += kGroups) {
      __pipeline_memcpy_async(&score(i), source.row(i, column).score, sizeof(float4));
    }
    __pipeline_commit();
#pragma unroll 4
    for (int i = source.begin + group; i < source.end; i += kGroups) {
      __pipeline_memcpy_async(&value(i), source.row(i, column).kv, sizeof(float4));
    }
    __pipeline_commit();
  }

  // Completes the scores with their ape; `last_bias` is the last row's, the only fresh one of a decode step. Returns
  // the largest score of each of the thread's channels over its rows.
  __device__ float4 finish_scores(const PoolSource& source, int channel, const float4& last_bias) const {
    __pipeline_wait_prior(1);
    float4 largest = lowest_quad();
#pragma unroll 4
    for (int i = source.begin + group; i < source.end; i += kGroups) {
      float4 full = score(i);
      if (i >= source.fresh) {
        full = add_quads(full, i == source.end - 1 ? last_bias : source.bias(i, channel + 4 * quad));
        score(i) = full;
      }
      largest = max_quads(largest, full);
    }
    return largest;
  }
};

}  // namespace dsv4rt::cuda
