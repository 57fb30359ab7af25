// How much room the decoded rows of a step take (decoded_rows.cuh), as the host plans it.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"
#include "dsv4rt/row_geometry.h"

namespace dsv4rt::cuda {

// The step's own rows, then every sequence's ring, then every sequence's compressed rows; places of rows that a
// sequence does not have stay as they are.
struct DecodedRowsShape {
  std::int32_t sequences = 0;
  std::int32_t staged = 0;      // most rows of the step
  std::int32_t ring = 0;        // rows of a sequence's ring
  std::int32_t compressed = 0;  // most compressed rows of a sequence
  bool operator==(const DecodedRowsShape&) const = default;

  // Places of rows in the cache, those that the step has completed among them, and all.
  [[nodiscard]] constexpr std::int64_t cached() const {
    return std::int64_t{sequences} * (std::int64_t{ring} + compressed);
  }
  [[nodiscard]] constexpr std::int64_t rows() const { return staged + cached(); }
  [[nodiscard]] constexpr std::int64_t bytes() const {
    return rows() * kHeadDim * static_cast<std::int64_t>(sizeof(bf16));
  }
};

}  // namespace dsv4rt::cuda
