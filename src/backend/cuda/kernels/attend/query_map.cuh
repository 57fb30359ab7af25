// The queries of a step as the Hopper kernels of attention copy them (query_copy.cuh), and its outputs as they store
// them.
#pragma once

#include <cstdint>
#include <cuda.h>

#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"
#include "backend/cuda/kernels/attend/warpgroup_limits.h"
#include "backend/ops.h"

namespace dsv4rt::cuda {

// Rows of a head's values, in boxes of 64 heads x 64 values.
inline Status encode_query_map(const AttendParams& p, CUtensorMap& queries) {
  return encode_row_map({.data = p.q,
                         .value_bytes = 2,
                         .columns = kHeadDim,
                         .rows = std::int64_t{p.step.counts.tokens} * p.heads,
                         .row_bytes = kHeadDim * 2,
                         .box_columns = kAtomValues,
                         .box_rows = kTileHeads},
                        queries);
}

// Values of a token's heads, or their codes, in boxes of a warp's 16 heads x 128 bytes; heads beyond the token's are
// not written.
inline Status encode_output_map(const AttendParams& p, CUtensorMap& outputs) {
  const int value_bytes = p.encoded ? 1 : 2;
  return encode_row_map({.data = p.encoded ? static_cast<void*>(p.encoded->codes) : p.o,
                         .value_bytes = value_bytes,
                         .columns = kHeadDim,
                         .rows = p.heads,
                         .row_bytes = kHeadDim * value_bytes,
                         .box_columns = kAtomRowBytes / value_bytes,
                         .box_rows = 16,
                         .matrices = p.step.counts.tokens},
                        outputs);
}

}  // namespace dsv4rt::cuda
