// The rows that one token attends to, in their order, and how they divide into chunks and KV splits.
//
// Window rows oldest first, then compressed rows ascending. A chunk is what shared memory holds decoded;
// KV split s takes the chunks s, s + KV splits, .. one after the other. Both follow from the token's own row
// count alone, so that the order of summation does: per head, the KV splits are summed in order, each of them
// a chain over its chunks.
#pragma once

#include <cstdint>

#include "backend/attend_weights.h"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/token_position.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kChunkRows = 160;   // a multiple of 16
inline constexpr int kMostKvSplits = 8;  // what a thread block cluster can be on every device

// Rows a token can have at most, from what the host knows.
__host__ __device__ inline std::int64_t most_compressed_rows(const AttendParams& p) {
  if (p.ratio == 0) return 0;
  const std::int64_t paged = p.rows.table_stride * p.rows.shape.rows;
  return p.topk_indices != nullptr && p.topk_stride < paged ? p.topk_stride : paged;
}

struct TokenRows {
  TokenPosition place;
  std::int32_t window = 0;
  std::int32_t count = 0;  // window + compressed; 0: padding
  const std::int32_t* topk_indices = nullptr;

  // Whether the token has so many rows, none of them selected, that its weights are relative to a power of two; on
  // Hopper the dense kernel takes it.
  [[nodiscard]] __device__ bool is_dense() const { return weighs_by_power(topk_indices != nullptr, count); }

  // Chunks of chunk_rows rows, the last one shorter; never an empty one.
  [[nodiscard]] __device__ int chunks() const { return (count + kChunkRows - 1) / kChunkRows; }
  [[nodiscard]] __device__ int chunk_rows() const {
    const int n = chunks();
    return ((count + n - 1) / n + 15) / 16 * 16;
  }
};

// Rows of the window that a token has.
__device__ inline std::int32_t window_rows(const AttendParams& p, const TokenPosition& place) {
  return place.real ? min(p.window, place.position + 1) : 0;
}

// `selected`: how many are, where rows are selected. `most`: most_compressed_rows().
__device__ inline TokenRows token_rows(const AttendParams& p, std::int64_t token, const TokenPosition& place,
                                       std::int32_t selected, std::int32_t most) {
  TokenRows rows{.place = place};
  std::int32_t compressed = 0;
  if (p.ratio > 0) {
    compressed = p.topk_indices != nullptr ? selected : (place.position + 1) / p.ratio;
    compressed = max(0, min(compressed, most));
    if (p.topk_indices != nullptr) rows.topk_indices = p.topk_indices + token * p.topk_stride;
  }
  rows.window = window_rows(p, place);
  rows.count = place.real ? rows.window + compressed : 0;
  return rows;
}
// position_of(): the token's.
template <class PositionOf>
__device__ inline TokenRows token_rows(const AttendParams& p, std::int64_t token, const PositionOf& position_of) {
  // Read with the token's place, not after it; used whatever the place is, so that the read stays there. Not by
  // __ldg(): the compiler may move that ahead of the wait for the kernel that writes the count.
  const std::int32_t selected = p.topk_indices != nullptr ? p.topk_count[token] : 0;
  return token_rows(p, token, position_of(), selected, static_cast<std::int32_t>(most_compressed_rows(p)));
}
__device__ inline TokenRows token_rows(const AttendParams& p, std::int64_t token) {
  return token_rows(p, token, [&] { return token_position(p.step, token); });
}

__device__ inline RowAddress window_address(const AttendParams& p, const TokenRows& rows, std::int32_t index) {
  const std::int32_t position = rows.place.position - rows.window + 1 + index;
  if (position >= rows.place.start) {
    return row_address(p.staged_shape, p.staged, rows.place.token_of(position));
  }
  return row_address(p.ring.shape, p.ring.base + rows.place.slot * p.ring.slot_bytes, position % p.ring.shape.rows);
}

__device__ inline RowAddress compressed_address(const AttendParams& p, const TokenRows& rows, std::int32_t index) {
  const PagedRows& paged = p.rows;
  const std::int32_t row = rows.topk_indices != nullptr ? rows.topk_indices[index] : index;
  const std::int32_t block = paged.block_table[rows.place.slot * paged.table_stride + row / paged.shape.rows];
  return row_address(paged.shape, paged.blocks + block * paged.shape.block_bytes, row % paged.shape.rows);
}

}  // namespace dsv4rt::cuda
