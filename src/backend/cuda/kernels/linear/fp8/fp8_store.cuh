// How a warpgroup stores one row tile's outputs of 64 tokens, or two, as values or, a block of two, as codes.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/encode_fragments.cuh"
#include "backend/cuda/kernels/linear/fp8/fp8_shape.h"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kTiles>
struct Fp8Store {
  static constexpr int kColumns = kTiles * kRowTile;
  static constexpr int kValues = kColumns / 2;

  const LinearProblem& q;
  const CUtensorMap* map;  // tensor map of y, for wide BF16, or of its codes
  float* scales;           // PrefillParams::output_scales of the problem: null where outputs leave as values
  int scale_stride;
  int tokens;            // number of rows of y
  std::uint32_t buffer;  // the warpgroup's, [row tile][64 tokens][128 bytes]
  int barrier;           // named barrier of the warpgroup
  int warp;              // number in the warpgroup
  int lane;

  __device__ __forceinline__ void sync_warpgroup() const {
    asm volatile("bar.sync %0, 128;\n" ::"r"(barrier) : "memory");
  }
  // The thread that hands boxes to the copy engine.
  __device__ __forceinline__ bool stores() const { return warp == 0 && elected_lane(); }

  // The boxes that this thread has handed over have left the buffer.
  __device__ __forceinline__ void wait_for_boxes() const {
    if (stores()) wait_stores_read<0>();
  }
  // Those of the item before have, and others may write it.
  __device__ __forceinline__ void wait_for_buffer() const {
    wait_for_boxes();
    sync_warpgroup();
  }

  __device__ __forceinline__ bool takes_boxes() const { return q.wide_stores && !q.float_output; }

  // Any alignment, and FP32.
  __device__ __forceinline__ void direct(int first_row_tile, int first_token, const float (&sum)[kValues]) const {
#pragma unroll
    for (int i = 0; i < kValues; i += 2) {
      const int token = first_token + warp * 16 + lane / 4 + i % 4 / 2 * 8;
      const int column = i / 4 * 8 + lane % 4 * 2;
      if (token >= tokens || first_row_tile + column / kRowTile >= q.row_tiles) continue;
      const std::int64_t at = token * q.y_stride + first_row_tile * kRowTile + column;
      if (q.float_output) {
        float* y = static_cast<float*>(q.y) + at;
        if (q.wide_stores) {
          *reinterpret_cast<float2*>(y) = make_float2(sum[i], sum[i + 1]);
        } else {
          y[0] = sum[i], y[1] = sum[i + 1];
        }
      } else {
        auto* y = static_cast<__nv_bfloat16*>(q.y) + at;
        y[0] = __float2bfloat16_rn(sum[i]), y[1] = __float2bfloat16_rn(sum[i + 1]);
      }
    }
  }

  // Through shared memory, a box for each row tile: 64 tokens of 128 bytes in the 128-byte swizzle.
  __device__ __forceinline__ void boxes(int first_row_tile, int first_token, const float (&sum)[kValues]) const {
    const auto pack = [](float low, float high) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
      return *reinterpret_cast<const std::uint32_t*>(&pair);
    };
    constexpr int kTokenBytes = kRowTile * 2;
    constexpr int kBoxBytes = kFp8GroupTokens * kTokenBytes;
    // Lane l names row l % 8 of matrix l / 8: tokens 0 .. 7 and 8 .. 15 of eight outputs, then of the next eight.
    const int token = warp * 16 + lane % 16;
    const std::uint32_t own = buffer + token * kTokenBytes;
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const float* v = sum + j * 4;
      const int unit = j % 8 + lane / 16;
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                       own + j / 8 * kBoxBytes + ((unit ^ token % 8) << 4)),
                   "r"(pack(v[0], v[1])), "r"(pack(v[2], v[3])), "r"(pack(v[4], v[5])), "r"(pack(v[6], v[7]))
                   : "memory");
    }
    fence_async_proxy();
    sync_warpgroup();
    if (!stores()) return;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (first_row_tile + tile >= q.row_tiles) break;
      store_box(map, (first_row_tile + tile) * kRowTile, first_token, buffer + tile * kBoxBytes);
    }
    commit_stores();
  }

  // A block of 128 outputs, encoded: a box of 64 tokens of 128 codes.
  __device__ __forceinline__ void codes(int first_row_tile, int first_token, const float (&sum)[kValues]) const {
    BlockPairs pairs;
#pragma unroll
    for (int tile = 0; tile < kBlockTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) pairs[i][tile] = round_pair(sum[tile * 4 + i * 2], sum[tile * 4 + i * 2 + 1]);
    }
    const BlockScales block(pairs);
    stage_codes(pairs, block, code_address(buffer, warp * 16, lane));
    fence_async_proxy();
    sync_warpgroup();
    if (stores()) {
      store_box(map, first_row_tile * kRowTile, first_token, buffer);
      commit_stores();
    }
    if (lane % 4 != 0) return;
    float* to = scales + std::int64_t{first_row_tile / kTiles} * scale_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = first_token + warp * 16 + lane / 4 + i * 8;
      if (token < tokens) to[token] = scale_of_code(block.code[i]);
    }
  }

  // Precondition: the buffer is free.
  __device__ __forceinline__ void run(int first_row_tile, int first_token, const float (&sum)[kValues]) const {
    if constexpr (kColumns == kEncodedBlockValues) {
      if (scales != nullptr) {
        codes(first_row_tile, first_token, sum);
        return;
      }
    }
    if (takes_boxes()) {
      boxes(first_row_tile, first_token, sum);
    } else {
      direct(first_row_tile, first_token, sum);
    }
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
