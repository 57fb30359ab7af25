// The compressor: pools blocks of tokens into rows, and keeps the rows of kv and score it still needs.
#include <cstring>

#include "backend/cpu/block_pool.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/hadamard.h"
#include "backend/cpu/paged_rows.h"
#include "backend/cpu/rms_scale.h"
#include "backend/cpu/rope_rows.h"
#include "backend/cpu/step_tokens.h"
#include "base/check.h"

namespace dsv4rt::cpu {
namespace {

std::int32_t state_width(const CompressorInput& input) {
  return input.overlap ? 2 * input.dim : input.dim;
}

// kv of ring row `row`; its score + ape follow `width` values later.
float* state_row(const StateRing& state, std::int32_t width, std::int32_t slot, std::int32_t row) {
  auto* base = reinterpret_cast<float*>(state.base + slot * state.slot_bytes);
  return base + std::int64_t{row} * 2 * width;
}

// One position's values for a pool, `column` values into its row.
PoolRow pool_row(const CompressParams& params, const TokenPosition& place, std::int32_t position, std::int32_t column) {
  const CompressorInput& input = params.input;
  if (position >= place.start) {
    const std::int64_t offset = place.token_of(position) * input.stride + column;
    const std::int64_t ape_row = position % input.ratio;
    return {.kv = input.kv + offset,
            .score = input.score + offset,
            .bias = input.ape + ape_row * state_width(input) + column};
  }
  const std::int32_t width = state_width(input);
  const float* row = state_row(params.state, width, place.slot, position % params.state.ring_rows) + column;
  return {.kv = row, .score = row + width, .bias = nullptr};
}

// Pools the block that ends at the token into values [dim].
void pool_completed_block(const CompressParams& params, const TokenPosition& place, float* values) {
  const CompressorInput& input = params.input;
  const std::int32_t first = place.position + 1 - input.ratio;
  BlockPool pool(input.dim);
  if (input.overlap && first >= input.ratio) {
    for (std::int32_t p = first - input.ratio; p < first; ++p) pool.add(pool_row(params, place, p, 0));
  }
  const std::int32_t current_column = input.overlap ? input.dim : 0;
  for (std::int32_t p = first; p <= place.position; ++p) pool.add(pool_row(params, place, p, current_column));
  pool.reduce(values);
}

// Pooled values -> the row's values as they are encoded.
void finish_row(const CompressParams& params, std::int32_t anchor_position, float* values) {
  const std::int32_t dim = params.input.dim;
  for (int i = 0; i < dim; ++i) values[i] = round_to_bf16(values[i]);
  if (params.norm_weight != nullptr) {
    const float scale = rms_scale(values, dim, params.eps);
    for (int i = 0; i < dim; ++i) values[i] = round_to_bf16(values[i] * scale * to_float(params.norm_weight[i]));
  }
  RopeRotation(params.rope, anchor_position).apply(values + dim - kRopeDim);
  if (params.hadamard) {
    hadamard_transform(values);
    for (int i = 0; i < dim; ++i) values[i] = round_to_bf16(values[i]);
  }
}

void compress_token(const CompressParams& params, std::int64_t token) {
  const TokenPosition place = token_position(params.step, token);
  const std::int32_t ratio = params.input.ratio;
  const std::int32_t row = params.step.row_index[params.input.ratio_class][token];
  float values[kHeadDim];
  pool_completed_block(params, place, values);
  const std::int32_t offset = params.anchor == Profile::RopeAnchor::kFirstToken ? 0 : ratio - 1;
  finish_row(params, row * ratio + offset, values);
  std::byte* block = params.rows.blocks + block_offset(params.rows, place.slot, row);
  const std::int64_t block_row = row % params.rows.shape.rows;
  if (params.is_index_key) {
    encode_row(params.key_format, params.rows.shape, values, block, block_row);
  } else {
    encode_row(params.row_format, params.rows.shape, values, block, block_row);
  }
}

}  // namespace

Status CpuOps::compress(const CompressParams& params) {
  const CompressorInput& input = params.input;
  DSV4RT_CHECK(input.dim == (params.is_index_key ? kIndexHeadDim : kHeadDim));
  DSV4RT_CHECK(input.ratio >= 1 && input.ratio * (input.overlap ? 2 : 1) <= BlockPool::kMaxRows);
  const std::uint8_t* valid = params.step.valid_mask[input.ratio_class];
  return team_.parallel_for(params.step.counts.tokens, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t token = begin; token < end; ++token) {
      if (valid[token] != 0 && params.step.token_sequence[token] >= 0) compress_token(params, token);
    }
  });
}

Status CpuOps::state_store(const StateStoreParams& params) {
  const StepView& step = params.step;
  const CompressorInput& input = params.input;
  const std::int32_t width = state_width(input);
  return team_.parallel_for(step.counts.sequences, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t sequence = begin; sequence < end; ++sequence) {
      const TokenRange range = last_tokens(step, sequence, params.state.ring_rows);
      for (std::int64_t token = range.begin; token < range.end; ++token) {
        const std::int32_t position = step.token_position[token];
        float* kv = state_row(params.state, width, step.sequence_slot[sequence], position % params.state.ring_rows);
        const float* score = input.score + token * input.stride;
        const float* ape = input.ape + std::int64_t{position % input.ratio} * width;
        std::memcpy(kv, input.kv + token * input.stride, static_cast<std::size_t>(width) * sizeof(float));
        for (int i = 0; i < width; ++i) kv[width + i] = score[i] + ape[i];
      }
    }
  });
}

}  // namespace dsv4rt::cpu
