// Indexer scores: score[s] = sum over heads of w[h] * relu(q[h] . k[s]).
//
// A block takes tiles of 256 keys; each warp holds 32 of them as operands in registers and runs the tokens
// of its group over them, so that tokens of one sequence decode a key once. Products are added over heads
// in a fixed order: partial sums by h % 16, heads ascending, then a binary tree over the sixteen.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

#include "backend/cuda/kernels/common/mma_tile.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/indexer_topk/params.h"
#include "base/bfloat16.h"

namespace dsv4rt::cuda {

inline constexpr int kScoreThreads = 256;
inline constexpr int kKeyUnits = kIndexHeadDim / kUnitValues;
inline constexpr int kWarpKeyTiles = kKeyTileRows / (kScoreThreads / 32) / 8;  // tiles of eight keys for a warp
inline constexpr int kKeySteps = kIndexHeadDim / 32;                           // 32 values of a key each

struct ScoreShared {
  alignas(256) std::byte keys[kKeyTileRows * kIndexHeadDim * 2];
  alignas(256) std::byte q[kMostIndexHeads * kIndexHeadDim * 2];
  RowAddresses<kKeyTileRows> address;
  float weight[kMostIndexHeads];
};

template <IndexKeyFormat kFormat>
class ScoreBlock {
 public:
  // 16-byte loads a thread has in flight; with these the kernel fits its registers.
  static constexpr int kLoadBatch = kFormat == IndexKeyFormat::kBf16 ? 3 : 2;

  __device__ ScoreBlock(const IndexerTopkParams& params, ScoreShared& shared) : p_(params), shared_(shared) {}

  // Keys [begin, begin + count) of the sequence, the warp's share of them into registers.
  __device__ void load_keys(std::int32_t sequence, std::int32_t begin, std::int32_t count) {
    const PagedRows& keys = p_.keys;
    const std::int64_t table = p_.step.sequence_slot[sequence] * keys.table_stride;
    __syncthreads();
#pragma unroll 1
    for (int i = thread_; i < count; i += kScoreThreads) {
      const std::int32_t row = begin + i;
      const std::int32_t block = keys.block_table[table + row / keys.shape.rows];
      shared_.address.set(i,
                          row_address(keys.shape, keys.blocks + block * keys.shape.block_bytes, row % keys.shape.rows));
    }
    __syncthreads();
    decode_rows_as<KeyUnitsOf<kFormat>, kScoreThreads, kLoadBatch>(shared_.address, 0, count, shared_.keys, thread_);
    __syncthreads();
    // Rows past `count` hold anything; they reach only scores that nobody reads.
    const std::uint32_t tile = shared_address(shared_.keys);
#pragma unroll
    for (int i = 0; i < kWarpKeyTiles; ++i) {
#pragma unroll
      for (int d = 0; d < kKeySteps; ++d) {
        load_matrix_x4(keys_[i][d], tile + tile_offset<kKeyUnits>(key(i) + lane_ % 8, 4 * d + lane_ / 8));
      }
    }
  }

  __device__ void load_queries(std::int64_t token) {
    const int padded = head_tiles() * 16;
    const auto* source = reinterpret_cast<const uint4*>(p_.q + token * p_.heads * kIndexHeadDim);
    __syncthreads();
    const std::uint32_t q = shared_address(shared_.q);
#pragma unroll 1
    for (int i = thread_; i < padded * kKeyUnits; i += kScoreThreads) {
      const bool present = i / kKeyUnits < p_.heads;
      copy_unit(q + tile_offset<kKeyUnits>(i / kKeyUnits, i % kKeyUnits), source + (present ? i : 0), present);
    }
#pragma unroll 1
    for (int head = thread_; head < padded; head += kScoreThreads) {
      shared_.weight[head] =
          head < p_.heads ? __fmul_rn(to_float(p_.head_weight[token * p_.head_weight_stride + head]), p_.head_scale)
                          : 0.0f;
    }
    wait_for_copies();
    __syncthreads();
  }

  // Scores of the loaded queries and keys to out[0 .. kKeyTileRows).
  __device__ void score(float* out) const {
    float sum[kWarpKeyTiles][4] = {};
    // Units 4 d + 2 c + lane / 16 differ in the bits of d and c alone, and so do their addresses.
    const std::uint32_t q = shared_address(shared_.q) + tile_offset<kKeyUnits>(lane_ % 16, lane_ / 16);
#pragma unroll 1
    for (int m = 0; m < head_tiles(); ++m) {
      const std::uint32_t tile = q + m * 16 * kKeyUnits * kUnitBytes;
      float s[kWarpKeyTiles][4] = {};
#pragma unroll
      for (int d = 0; d < kKeySteps; ++d) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          std::uint32_t a[4];
          load_matrix_x4(a, tile ^ ((4 * d + 2 * c) * kUnitBytes));
#pragma unroll
          for (int i = 0; i < kWarpKeyTiles; ++i) mma_16x8x16(s[i], a, keys_[i][d][2 * c], keys_[i][d][2 * c + 1]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = m * 16 + half * 8 + lane_ / 4;
        if (head >= p_.heads) continue;
        const float weight = shared_.weight[head];
#pragma unroll
        for (int i = 0; i < kWarpKeyTiles; ++i) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const float positive = s[i][e] < 0.0f ? 0.0f : s[i][e];  // keeps NaN
            sum[i][e] = __fadd_rn(sum[i][e], __fmul_rn(positive, weight));
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kWarpKeyTiles; ++i) {
      float total[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float value = __fadd_rn(sum[i][e], sum[i][e + 2]);
#pragma unroll
        for (int lanes = 16; lanes >= 4; lanes /= 2) {
          value = __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, lanes));
        }
        total[e] = value;
      }
      if (lane_ < 4) *reinterpret_cast<float2*>(out + key(i) + 2 * lane_) = make_float2(total[0], total[1]);
    }
  }

 private:
  [[nodiscard]] __device__ int head_tiles() const {
    return (p_.heads + 15) / 16;
  }
  [[nodiscard]] __device__ int key(int i) const {
    return (thread_ / 32 * kWarpKeyTiles + i) * 8;
  }

  const IndexerTopkParams& p_;
  ScoreShared& shared_;
  int thread_ = static_cast<int>(threadIdx.x);
  int lane_ = thread_ % 32;
  std::uint32_t keys_[kWarpKeyTiles][kKeySteps][4];
};

// Grid: y = groups of tokens; x blocks divide a group's key tiles among them.
template <IndexKeyFormat kFormat>
__global__ void __launch_bounds__(kScoreThreads, 2)
    score_rows_kernel(const __grid_constant__ IndexerTopkParams p, const __grid_constant__ ScoreBatch batch) {
  extern __shared__ __align__(256) std::byte score_shared[];
  ScoreBlock<kFormat> block(p, *reinterpret_cast<ScoreShared*>(score_shared));
  const int group_begin = static_cast<int>(blockIdx.y) * batch.group_tokens;
  const int group_end = min(group_begin + batch.group_tokens, batch.tokens);
  const auto visible = [&](int index) { return visible_index_rows(p, batch.first_token + index, batch.most_rows); };
  std::int32_t most = 0;  // rows to score for any token of the group
  for (int i = group_begin; i < group_end; ++i) {
    const std::int32_t rows = visible(i);
    if (rows > p.top_k) most = max(most, rows);
  }
  const int step = static_cast<int>(gridDim.x) * kKeyTileRows;
#pragma unroll 1
  for (int begin = static_cast<int>(blockIdx.x) * kKeyTileRows; begin < most; begin += step) {
    std::int32_t loaded = -1;  // the sequence whose keys the registers hold
#pragma unroll 1
    for (int i = group_begin; i < group_end; ++i) {
      const std::int32_t rows = visible(i);
      if (rows <= p.top_k || rows <= begin) continue;
      const std::int32_t sequence = p.step.token_sequence[batch.first_token + i];
      if (sequence != loaded) {
        std::int32_t limit = rows;  // what the group's last token of the sequence sees
#pragma unroll 1
        for (int j = i + 1; j < group_end && p.step.token_sequence[batch.first_token + j] == sequence; ++j) {
          limit = visible(j);
        }
        block.load_keys(sequence, begin, min(limit - begin, kKeyTileRows));
        loaded = sequence;
      }
      block.load_queries(batch.first_token + i);
      block.score(batch.scores + i * batch.stride + begin);
    }
  }
}

}  // namespace dsv4rt::cuda
