// What pooling in either way shares: which tokens complete a row, the softmax terms, and the way of a pooled row
// into the cache.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/exp.cuh"
#include "backend/cuda/kernels/common/hadamard.cuh"
#include "backend/cuda/kernels/common/row_encode.cuh"
#include "backend/cuda/kernels/common/row_finish.cuh"
#include "backend/cuda/kernels/compress/pool_source.cuh"

namespace dsv4rt::cuda {

// Calls body(token) for the tokens of [first, first + count) that complete a row, in order; count <= 32. The
// same in every warp that asks for the same tokens.
template <class Body>
__device__ inline void for_each_completing(const CompressParams& p, std::int64_t first, int count, const Body& body) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t token = first + lane;
  const bool completes = lane < count && token < p.step.counts.tokens &&
                         p.step.valid_mask[p.input.ratio_class][token] != 0 && p.step.token_sequence[token] >= 0;
  unsigned left = __ballot_sync(kFullWarp, completes);
  for (; left != 0; left &= left - 1) body(first + __ffs(static_cast<int>(left)) - 1);
}

__device__ inline float4 exp_of_difference(const float4& score, const float4& largest) {
  return make_float4(exp_unfused_nonpositive(__fsub_rn(score.x, largest.x)),
                     exp_unfused_nonpositive(__fsub_rn(score.y, largest.y)),
                     exp_unfused_nonpositive(__fsub_rn(score.z, largest.z)),
                     exp_unfused_nonpositive(__fsub_rn(score.w, largest.w)));
}

// The row that a token completes, for the dim / 4 threads that finish it.
class CompletedRow {
 public:
  __device__ CompletedRow(const CompressParams& p, const TokenPlace& place, std::int64_t token, int quad)
      : row_(p.step.row_index[p.input.ratio_class][token]),
        slot_(place.slot),
        finish_(p.norm_weight, p.rope, row_ * p.input.ratio + anchor_offset(p), p.input.dim, quad) {}

  // Looks up where the row goes; after wait_for_predecessors(), because tables change between steps.
  __device__ void locate(const CompressParams& p) {
    block_ = p.rows.block_table[slot_ * p.rows.table_stride + row_ / p.rows.shape.rows];
  }

  // pooled [dim] in shared memory, rounded to BF16 -> the row in the cache. Called by all threads of the row after
  // a barrier; `warp_amax` is null for index keys.
  __device__ void store(const CompressParams& p, const float* pooled, int quad, std::uint32_t* warp_amax) const {
    float v[4];
    finish_.apply(pooled, p.input.dim, p.eps, quad, v);
    if (p.hadamard) hadamard_bf16(v);
    const BlockShape& shape = p.rows.shape;
    std::byte* bytes = p.rows.blocks + block_ * shape.block_bytes;
    if (p.is_index_key) {
      encode_key_quad(p.key_format, shape, v, quad, bytes, row_ % shape.rows);
    } else {
      encode_row_quad(p.row_format, shape, v, quad, bytes, row_ % shape.rows, warp_amax);
    }
  }

 private:
  __device__ static std::int32_t anchor_offset(const CompressParams& p) {
    return p.anchor == Profile::RopeAnchor::kFirstToken ? 0 : p.input.ratio - 1;
  }

  std::int32_t row_;
  std::int32_t slot_;
  RowFinish finish_;
  std::int64_t block_ = 0;
};

}  // namespace dsv4rt::cuda
