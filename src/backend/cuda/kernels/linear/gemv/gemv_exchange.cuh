// What becomes of a segment's sums of at most eight tokens: every block of the cluster sends each of the others its
// sums of that one's outputs, and adds up what it gets for its own.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/linear/gemv/gemv_inputs.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void store_output(const LinearProblem& q, std::int64_t at, float v) {
  if (q.float_output) {
    static_cast<float*>(q.y)[at] = v;
  } else {
    static_cast<__nv_bfloat16*>(q.y)[at] = __float2bfloat16_rn(v);
  }
}

// Stores two values in any block of the cluster; `barrier` of the same block counts them as announced bytes.
__device__ __forceinline__ void send_pair(std::uint32_t address, float first, float second, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];\n" ::"r"(address),
      "f"(first), "f"(second), "r"(barrier)
      : "memory");
}

struct GemvExchange {
  using Sums = float[kGemvTokens / 2];  // sums that a thread holds, placed as mma_16x8x16() says

  const LinearParams& p;
  const GemvUnit& unit;
  int rank;
  int warp;
  int lane;

  // Sums go in pairs of tokens, the second of the last pair maybe beyond the last token.
  __device__ __forceinline__ static std::uint32_t expected_bytes(int tokens) {
    return static_cast<std::uint32_t>((tokens + 1) / 2 * kRowTile) * (2 * sizeof(float));
  }

  // `output` of the row tile.
  __device__ __forceinline__ void store(int output, int token, float v) const {
    store_output(*unit.q, token * unit.q->y_stride + unit.row_tile * kRowTile + output, v);
  }

  __device__ __forceinline__ void send(const Sums& sum, int share) const {
    const int token = 2 * (lane % 4);
    if (token >= p.tokens) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = warp * 16 + half * 8 + lane / 4;
      const auto owner = static_cast<unsigned>(output * p.segments / kRowTile);
      const std::uint32_t to =
          unit.received + static_cast<std::uint32_t>((rank * share + (output & (share - 1))) * kGemvTokens + token) * 4;
      send_pair(block_address(to, owner), sum[2 * half], sum[2 * half + 1], block_address(unit.received_full, owner));
    }
  }

  // The segments' sums of an own output, in order.
  __device__ __forceinline__ float total(int output, int token, int share) const {
    float parts[kMaxSegments];
#pragma unroll
    for (int s = 0; s < kMaxSegments; ++s) {
      if (s < p.segments) {
        parts[s] = load_shared_float(unit.received +
                                     static_cast<std::uint32_t>((s * share + output) * kGemvTokens + token) * 4);
      }
    }
#pragma unroll
    for (int s = 1; s < kMaxSegments; ++s) {
      if (s < p.segments) parts[0] += parts[s];
    }
    return parts[0];
  }

  // Precondition: the cluster's blocks have initialized their barriers.
  __device__ __forceinline__ void store(const Sums& sum) const {
    if (p.segments == 1) {
#pragma unroll
      for (int i = 0; i < kGemvTokens / 2; ++i) {
        const int token = 2 * (lane % 4) + i % 2;
        if (token < p.tokens) store(warp * 16 + i / 2 * 8 + lane / 4, token, sum[i]);
      }
      return;
    }
    const int share = kRowTile / p.segments;  // outputs of a block; a power of two
    send(sum, share);
    barrier_wait_cluster(unit.received_full, 0);
    for (int i = warp * 32 + lane; i < share * p.tokens; i += kWarpgroup) {
      const int output = i & (share - 1);
      const int token = i * p.segments / kRowTile;
      store(rank * share + output, token, total(output, token, share));
    }
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
