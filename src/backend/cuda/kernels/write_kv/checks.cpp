#include "backend/cuda/kernels/write_kv/checks.h"

#include "backend/cuda/kernels/common/launch_check.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int32_t kMaxHeads = 1 << 16;
constexpr std::int32_t kMaxPooledRows = 128;

Status check_heads(std::int32_t heads, const char* operation, const char* field) {
  return require(heads >= 1 && heads <= kMaxHeads, operation, field, heads, "1 to 65536");
}

}  // namespace

Status check_query(const QueryParams& params, const char* operation) {
  DSV4RT_RETURN_IF_ERROR(check_heads(params.heads, operation, "heads"));
  return require_aligned(params.q, 16, operation, "q");
}

Status check_index_query(const IndexQueryParams& params, const char* operation) {
  DSV4RT_RETURN_IF_ERROR(check_heads(params.heads, operation, "index heads"));
  return require_aligned(params.q, 16, operation, "index q");
}

Status check_swa_kv(const SwaKvParams& params, const char* operation) {
  const std::int32_t tokens = params.step.counts.tokens;
  DSV4RT_RETURN_IF_ERROR(require_shape(params.staged_shape, params.format, operation, "staged_shape"));
  DSV4RT_RETURN_IF_ERROR(
      require(params.staged_first >= 0, operation, "staged_first", params.staged_first, "0 or more"));
  DSV4RT_RETURN_IF_ERROR(require(std::int64_t{params.staged_first} + tokens <= params.staged_shape.rows, operation,
                                 "step.counts.tokens", tokens,
                                 "at most the rows of staged_shape from staged_first on"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(params.kv, 8, operation, "kv"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(params.norm_weight, 8, operation, "norm_weight"));
  return require_aligned(params.staged, 16, operation, "staged");
}

Status check_window_ring(const SwaRing& ring, const BlockShape& staged_shape, const char* operation) {
  DSV4RT_RETURN_IF_ERROR(require_shape(ring.shape, ring.format, operation, "ring.shape"));
  DSV4RT_RETURN_IF_ERROR(require_shape(staged_shape, ring.format, operation, "staged_shape"));
  DSV4RT_RETURN_IF_ERROR(
      require(ring.slot_bytes % 16 == 0, operation, "ring.slot_bytes", ring.slot_bytes, "multiples of 16"));
  return require_aligned(ring.base, 16, operation, "ring.base");
}

Status check_state(const CompressorInput& input, const StateRing& state, const char* operation) {
  const std::int32_t width = input.overlap ? 2 * input.dim : input.dim;
  DSV4RT_RETURN_IF_ERROR(
      require(input.dim == kHeadDim || input.dim == kIndexHeadDim, operation, "input.dim", input.dim, "512 and 128"));
  DSV4RT_RETURN_IF_ERROR(require(input.ratio >= 1, operation, "input.ratio", input.ratio, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(require(input.stride % 4 == 0 && input.stride >= width, operation, "input.stride",
                                 input.stride, "multiples of 4 from the row's width on"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(input.kv, 16, operation, "input.kv"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(input.score, 16, operation, "input.score"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(input.ape, 16, operation, "input.ape"));
  DSV4RT_RETURN_IF_ERROR(require(state.ring_rows >= 1, operation, "state.ring_rows", state.ring_rows, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(
      require(state.slot_bytes % 16 == 0, operation, "state.slot_bytes", state.slot_bytes, "multiples of 16"));
  return require_aligned(state.base, 16, operation, "state.base");
}

Status check_compress(const CompressParams& params, const char* operation) {
  const CompressorInput& input = params.input;
  DSV4RT_RETURN_IF_ERROR(check_state(input, params.state, operation));
  const std::int32_t dim = params.is_index_key ? kIndexHeadDim : kHeadDim;
  DSV4RT_RETURN_IF_ERROR(
      require(input.dim == dim, operation, "input.dim", input.dim, "512 for rows, 128 for index keys"));
  DSV4RT_RETURN_IF_ERROR(require(input.ratio_class >= 0 && input.ratio_class < kMaxRatioClasses, operation,
                                 "input.ratio_class", input.ratio_class, "0 to 3"));
  DSV4RT_RETURN_IF_ERROR(require(!params.hadamard || params.is_index_key, operation, "hadamard", 1, "index keys only"));
  const std::int64_t pooled = std::int64_t{input.ratio} * (input.overlap ? 2 : 1);
  DSV4RT_RETURN_IF_ERROR(require_supported(pooled <= kMaxPooledRows, operation, "input.ratio", input.ratio,
                                           "at most 128 pooled rows (64 tokens with overlap)"));
  DSV4RT_RETURN_IF_ERROR(require(params.state.ring_rows >= pooled, operation, "state.ring_rows", params.state.ring_rows,
                                 "the rows that a block pools or more"));
  if (params.norm_weight != nullptr) {
    DSV4RT_RETURN_IF_ERROR(require_aligned(params.norm_weight, 8, operation, "norm_weight"));
  }
  DSV4RT_RETURN_IF_ERROR(require_aligned(params.rows.blocks, 16, operation, "rows.blocks"));
  DSV4RT_RETURN_IF_ERROR(require(params.rows.shape.block_bytes % 16 == 0, operation, "rows.shape.block_bytes",
                                 params.rows.shape.block_bytes, "multiples of 16"));
  return params.is_index_key ? require_shape(params.rows.shape, params.key_format, operation, "rows.shape")
                             : require_shape(params.rows.shape, params.row_format, operation, "rows.shape");
}

}  // namespace dsv4rt::cuda
