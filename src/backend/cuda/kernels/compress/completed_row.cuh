// What both ways of pooling share: which tokens complete a row, and the way of a pooled row into the cache.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/hadamard.cuh"
#include "backend/cuda/kernels/common/row_encode.cuh"
#include "backend/cuda/kernels/common/row_finish.cuh"
#include "backend/cuda/kernels/compress/pool_source.cuh"

namespace dsv4rt::cuda {

// Tells which of `count` <= 32 tokens from `first` on complete a row: bit i stands for token first + i. The answer is
// the same in every warp that asks for the same tokens.
__device__ inline unsigned completing_tokens(const CompressParams& p, std::int64_t first, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t token = first + lane;
  const bool completes = lane < count && token < p.step.counts.tokens &&
                         p.step.valid_mask[p.input.ratio_class][token] != 0 && p.step.token_sequence[token] >= 0;
  // Broadcast, so that the compiler sees that the warp stays together.
  return __shfl_sync(kFullWarp, __ballot_sync(kFullWarp, completes), 0);
}

// The row that a token completes, for the dim / 4 threads that finish it.
class CompletedRow {
 public:
  CompletedRow() = default;
  __device__ CompletedRow(const CompressParams& p, const TokenPosition& place, std::int64_t token, int quad)
      : row_(p.step.row_index[p.input.ratio_class][token]),
        table_index_(place.slot * p.rows.table_stride + row_ / p.rows.shape.rows),
        block_row_(row_ % p.rows.shape.rows),
        finish_(p.norm_weight, p.rope, row_ * p.input.ratio + anchor_offset(p), p.input.dim, quad) {}

  // Looks up where the row goes; after wait_for_predecessors(), because tables change between steps.
  __device__ void locate(const CompressParams& p) { block_ = p.rows.block_table[table_index_]; }

  // pooled [dim] in shared memory, rounded to BF16 and complete -> the row in the cache.
  __device__ void store(const CompressParams& p, const float* pooled, const RowGroup<kRowQuads>& group,
                        std::uint32_t* warp_amax) const {
    float v[4];
    finish_.apply(pooled, kHeadDim, p.eps, group.thread, v);
    encode_row_quad(p.row_format, p.rows.shape, v, group, block(p), block_row_, warp_amax);
  }
  // The same for an index key, by a warp.
  __device__ void store_key(const CompressParams& p, const float* pooled, int quad) const {
    float v[4];
    finish_.apply(pooled, kIndexHeadDim, p.eps, quad, v);
    if (p.hadamard) hadamard_bf16(v);
    encode_key_quad(p.key_format, p.rows.shape, v, quad, block(p), block_row_);
  }

 private:
  __device__ static std::int32_t anchor_offset(const CompressParams& p) {
    return p.anchor == Profile::RopeAnchor::kFirstToken ? 0 : p.input.ratio - 1;
  }

  [[nodiscard]] __device__ std::byte* block(const CompressParams& p) const {
    return p.rows.blocks + block_ * p.rows.shape.block_bytes;
  }

  std::int32_t row_ = 0;
  std::int64_t table_index_ = 0;
  std::int32_t block_row_ = 0;
  RowFinish finish_;
  std::int64_t block_ = 0;
};

}  // namespace dsv4rt::cuda
