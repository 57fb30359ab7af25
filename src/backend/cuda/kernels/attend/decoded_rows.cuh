// The rows that a step's tokens may attend to, decoded to BF16 in scratch memory: in prompts hundreds of tokens read a
// row, and each block would decode it anew.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/decoded_rows_shape.h"
#include "backend/cuda/kernels/attend/packed_row.cuh"

namespace dsv4rt::cuda {

struct DecodedRows {
  bf16* rows = nullptr;  // [shape.rows(), kHeadDim]
  DecodedRowsShape shape;

  // Places of rows among these.
  [[nodiscard]] __device__ RowSlot ring_row(std::int32_t sequence, std::int32_t row) const {
    return static_cast<RowSlot>(shape.staged + sequence * shape.ring + row);
  }
  [[nodiscard]] __device__ RowSlot compressed_row(std::int32_t sequence, std::int32_t row) const {
    return static_cast<RowSlot>(shape.staged + shape.sequences * shape.ring + sequence * shape.compressed + row);
  }
  [[nodiscard]] __device__ RowSlot window_row(const TokenPosition& place, std::int32_t position) const {
    return position >= place.start ? static_cast<RowSlot>(place.token_of(position))
                                   : ring_row(place.sequence, position % shape.ring);
  }

  [[nodiscard]] __device__ const bf16* at(RowSlot row) const { return rows + std::int64_t{row} * kHeadDim; }
};

// A pass of dense_plan.cuh whose rows lie decoded.
template <class Pass>
struct Decoded : Pass {
  static constexpr bool kDecoded = true;

  DecodedRows decoded;
};

}  // namespace dsv4rt::cuda
