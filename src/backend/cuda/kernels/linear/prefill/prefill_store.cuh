// How a warpgroup of the prefill kernel stores a row tile.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/linear/prefill/prefill_shape.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A value whose origin the compiler does not see: addresses made of it are computed where they are used, and do not
// occupy registers all along the products.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

template <int kTokens>
struct PrefillStore {
  using Shape = PrefillShape<kTokens>;
  static constexpr int kValues = Shape::kValues;

  const LinearProblem& q;
  const CUtensorMap* map;  // tensor map of y, for wide_stores
  int tokens;              // number of rows of y
  std::uint32_t buffers;   // the warpgroup's two
  int barrier;             // named barrier of the warpgroup
  int warp;                // number in the warpgroup
  int lane;

  __device__ __forceinline__ void sync_warpgroup() const {
    asm volatile("bar.sync %0, 128;\n" ::"r"(barrier) : "memory");
  }

  // The thread that hands boxes to the copy engine.
  __device__ __forceinline__ bool stores() const { return warp == 0 && elected_lane(); }

  // Any alignment.
  __device__ __forceinline__ void direct(int row_tile, int first_token, const float (&sum)[kValues]) const {
    const int row = row_tile * kRowTile + warp * 16 + lane / 4;
    first_token += lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int token = first_token + i / 4 * 8 + i % 2;
      if (token >= tokens) continue;
      const std::int64_t at = token * q.y_stride + row + i % 4 / 2 * 8;
      if (q.float_output) {
        static_cast<float*>(q.y)[at] = sum[i];
      } else {
        static_cast<__nv_bfloat16*>(q.y)[at] = __float2bfloat16_rn(sum[i]);
      }
    }
  }

  // Through shared memory: tokens of 128 bytes in the 128-byte swizzle (unit u of token t at u ^ (t % 8)), two buffers
  // in turn, from which the copy engine takes boxes while the next products run.

  // The buffer of pass `pass`, when its last box has left.
  __device__ __forceinline__ std::uint32_t begin_pass(int pass) const {
    if (stores()) wait_stores_read<1>();
    sync_warpgroup();
    return pass % 2 * Shape::kBufferBytes;
  }
  __device__ __forceinline__ void end_pass() const {
    fence_async_proxy();
    sync_warpgroup();
  }

  __device__ __forceinline__ void boxes_bf16(int row_tile, int first_token, const float (&sum)[kValues]) const {
    constexpr int kTokenBytes = kRowTile * 2;
    constexpr int kPassTokens = Shape::box_tokens(false);
    const auto pack = [](float low, float high) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
      return *reinterpret_cast<const std::uint32_t*>(&pair);
    };
    // Lane l names row l % 8 of matrix l / 8: 8 tokens, outputs 0 .. 7 and 8 .. 15, then the next 8 tokens.
    const int unit = 2 * warp + lane / 8 % 2;
    const std::uint32_t own = buffers + (lane / 16 * 8 + lane % 8) * kTokenBytes + ((unit ^ lane % 8) << 4);
#pragma unroll
    for (int pass = 0; pass < kTokens / kPassTokens; ++pass) {
      const std::uint32_t buffer = begin_pass(pass);
#pragma unroll
      for (int t = 0; t < kPassTokens; t += 16) {
        const float* v = sum + (pass * kPassTokens + t) / 2;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(own + buffer +
                                                                                                      t * kTokenBytes),
                     "r"(pack(v[0], v[1])), "r"(pack(v[2], v[3])), "r"(pack(v[4], v[5])), "r"(pack(v[6], v[7]))
                     : "memory");
      }
      end_pass();
      if (stores()) {
        store_box(map, row_tile * kRowTile, first_token + pass * kPassTokens, buffers + buffer);
        commit_stores();
      }
    }
  }

  // Two boxes of 32 outputs; the map counts pairs of bytes.
  __device__ __forceinline__ void boxes_float(int row_tile, int first_token, const float (&sum)[kValues]) const {
    constexpr int kTokenBytes = kRowTile / 2 * 4;
    constexpr int kPassTokens = Shape::box_tokens(true);
    constexpr int kBoxBytes = kPassTokens * kTokenBytes;
    const int token = lane % 4 * 2;  // the lane's first token of every eight; the one after it is its too
    const int row = warp % 2 * 16 + lane / 4;
    const std::uint32_t own = buffers + warp / 2 * kBoxBytes + token * kTokenBytes + row % 4 * 4;
    const int unit = row / 4 ^ token;
#pragma unroll
    for (int pass = 0; pass < kTokens / kPassTokens; ++pass) {
      const std::uint32_t buffer = begin_pass(pass);
#pragma unroll
      for (int i = 0; i < kPassTokens / 2; ++i) {
        // Eight rows on: two units; an odd token: unit ^ 1.
        const std::uint32_t at = own + buffer + (i / 4 * 8 + i % 2) * kTokenBytes + ((unit ^ i % 4) << 4);
        asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(at), "f"(sum[pass * kPassTokens / 2 + i]) : "memory");
      }
      end_pass();
      if (stores()) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          store_box(map, (row_tile * 2 + half) * kRowTile, first_token + pass * kPassTokens,
                    buffers + buffer + half * kBoxBytes);
        }
        commit_stores();
      }
    }
  }

  __device__ __forceinline__ void run(int row_tile, int first_token, const float (&sum)[kValues]) const {
    if (!q.wide_stores) {
      direct(row_tile, first_token, sum);
    } else if (q.float_output) {
      boxes_float(row_tile, first_token, sum);
    } else {
      boxes_bf16(row_tile, first_token, sum);
    }
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
