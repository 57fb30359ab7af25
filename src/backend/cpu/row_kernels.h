// The inner loops over cache rows, one set per instruction-set level.
//
// Scores keep heads in vector lanes: every (head, row) value is one chain of additions in a fixed order
// that no tile size changes. AVX2 and AVX-512 fuse multiply and add and give the same bytes; the portable
// set does not fuse. Byte equality of results is promised per level, agreement to FP32 rounding between them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/cpu_features.h"
#include "base/bfloat16.h"
#include "dsv4rt/row_geometry.h"
#include "layout/row_format.h"

namespace dsv4rt::cpu {

// Rows are processed in tiles of this many; a multiple of every kernel's row block.
inline constexpr int kTileRows = 96;
// Heads come in groups of this many lanes; buffers are padded to a multiple of it.
inline constexpr int kHeadLanes = 16;
// Distance of decoded rows, in values: not a power of two, so that rows do not share cache sets.
inline constexpr int kDecodedStride = kHeadDim + 16;
inline constexpr int kDecodedKeyStride = kIndexHeadDim + 16;

struct RowKernels {
  // decode_row to FP32. fp8_row products are rounded to BF16: attention reads every format's values as
  // BF16, and only that format's products do not already fit.
  void (*decode_row)(RowFormat format, const BlockShape& shape, const std::byte* block, std::int64_t row, float* out);
  void (*decode_key)(IndexKeyFormat format, const BlockShape& shape, const std::byte* block, std::int64_t row,
                     float* out);

  // x [heads, dims] BF16 -> columns [dims, padded] FP32, heads in lanes; lanes past `heads` are zero.
  // dims is a multiple of 2; padded a multiple of kHeadLanes.
  void (*heads_to_lanes)(const bf16* x, int heads, int dims, int padded, float* columns);

  // scores[r, h] = sum over d ascending of columns[d, h] * rows[r, d] for r < row_count. Writes whole row
  // blocks: `rows` and `scores` are readable and writable up to row_count rounded up to kTileRows.
  void (*scores)(const float* columns, int padded, int dims, const float* rows, int row_stride, int row_count,
                 float* scores);

  // Works in place on scores [count, padded]: s *= scale; p = the rows' weights (attend_weights.h) before they are
  // rounded; denominator[h] = sum of p, rows ascending, + the weight of sink[h]; then p is rounded to BF16. The first
  // `window` rows are the window's; by_power: the multiple of ln 2 that is nearest to the maximum of all rows stands
  // for theirs.
  void (*softmax)(float* scores, int count, int window, int padded, float scale, bool by_power, const float* sink,
                  float* denominator);

  // sums[h, d] += sum over r ascending of p[r, h] * rows[r, d], d < kHeadDim.
  void (*accumulate)(const float* p, int padded, const float* rows, int row_stride, int row_count, float* sums);

  // out[h, d] = BF16(sums[h, d] / denominator[h]).
  void (*finish)(const float* sums, const float* denominator, int heads, bf16* out);

  // out[r] = sum over heads of weight[h] * relu(scores[r, h]): partial sums over heads by h % kHeadLanes
  // ascending, then a binary tree. NaN scores stay NaN. Lanes past `heads` do not take part.
  void (*index_sum)(const float* scores, int padded, int heads, int row_count, const float* weight, float* out);

  // --- kernels without fused operations: the same bytes at every level ---

  // Works in place on one query head [kHeadDim]: x *= rsqrt(mean(x^2) + eps). Every step is rounded to BF16, as the
  // reference model computes it: the square, its mean, mean + eps, the reciprocal root and the product. A
  // single rounding at the end changes the attention output by 0.5 to 1.5 %.
  void (*normalize_head)(bf16* head, float eps);

  // values [kIndexHeadDim] <- BF16(hadamard_transform(values)), the same bits as that function's.
  void (*hadamard_bf16)(float* values);

  // round_through(IndexKeyFormat::kMxfp4, values), the same bits.
  void (*round_mxfp4)(float* values);
};

// The set of `level`; kernels of a level that this build lacks fall back to the next lower one.
const RowKernels& row_kernels(IsaLevel level);

// One per translation unit; null where the compiler does not target the instruction set.
const RowKernels* portable_row_kernels();
const RowKernels* avx2_row_kernels();
const RowKernels* avx512_row_kernels();

}  // namespace dsv4rt::cpu
