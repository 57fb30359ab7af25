// The queries of tokens and their heads' weights, brought to shared memory as the matrix instruction takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/kernels/indexer_topk/index_mma.cuh"
#include "backend/cuda/kernels/indexer_topk/key_operand.cuh"
#include "backend/cuda/kernels/indexer_topk/params.h"
#include "base/bfloat16.h"

namespace dsv4rt::cuda {

inline constexpr int kQueryTileBytes = kTileHeads * kIndexHeadDim * 2;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Weight of a head that does not exist: a NaN that no arithmetic gives.
inline constexpr std::uint32_t kNoHead = 0x7f8dead1U;

// Place of a head's weight among its tile's: the sixteen of a lane's columns lie side by side.
__device__ inline int weight_place(int head) {
  return head / kTileHeads * kTileHeads + head % 8 / 2 * 16 + head % kTileHeads / 8 * 2 + head % 2;
}

// Queries in shared memory, of a token: [head tiles][two halves of the dims][64 heads][128 B], swizzled, and
// their weights [head tiles * 64].
template <IndexKeyFormat kFormat>
class QueryLoader {
 public:
  using Operand = KeyOperand<kFormat>;

  __device__ QueryLoader(const IndexerTopkParams& params, int head_tiles) : p_(params), head_tiles_(head_tiles) {}

  // Tokens from `token` on, kAhead of them at a time: a fetch takes as long as memory does.
  template <int kAhead>
  __device__ void load(std::int64_t token, int tokens, std::byte* queries, float* weights) const {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= kThreads) return;
#pragma unroll 1
    for (int tile = 0; tile < head_tiles_; ++tile) {
#pragma unroll 1
      for (int first = 0; first < tokens; first += kAhead) {
        Part part[kAhead][kThreadParts];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
#pragma unroll
          for (int j = 0; j < kThreadParts; ++j) {
            if (first + i < tokens) part[i][j] = fetch(token + first + i, head(tile, thread, j), thread % 8);
          }
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int slot = (first + i) * head_tiles_;
#pragma unroll
          for (int j = 0; j < kThreadParts; ++j) {
            if (first + i < tokens) {
              place(part[i][j], head(tile, thread, j), thread % 8, queries + slot * kQueryTileBytes,
                    weights + slot * kTileHeads);
            }
          }
        }
      }
    }
  }

 private:
  static constexpr int kThreads = 256;  // threads that load queries
  static constexpr int kThreadParts = kTileHeads * 8 / kThreads;
  static __device__ int head(int tile, int thread, int part) {
    return tile * kTileHeads + part * (kThreads / 8) + thread / 8;
  }

  // Sixteen dims of a head.
  struct Part {
    std::uint32_t words[8] = {};
    float weight = 0.0F;
  };

  // Part `index` of a head, zeros for a head that does not exist.
  __device__ Part fetch(std::int64_t token, int head, int index) const {
    Part part;
    if (head >= p_.heads) return part;
    const auto* source = reinterpret_cast<const uint4*>(p_.q + (token * p_.heads + head) * kIndexHeadDim + index * 16);
    const uint4 low = __ldg(source);
    const uint4 high = __ldg(source + 1);
    part = {.words = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w},
            .weight = to_float(p_.head_weight[token * p_.head_weight_stride + head])};
    return part;
  }

  // FP16 queries are scaled by a power of two so that the head's largest magnitude stands near the top of the
  // range: what FP16 then cannot hold is below 2^-32 of it. The weight takes the factor back. The eight lanes
  // of a head call together.
  __device__ void place(Part& part, int head, int index, std::byte* queries, float* weights) const {
    std::uint32_t(&words)[8] = part.words;
    float weight = __fmul_rn(part.weight, p_.head_scale);
    if constexpr (Operand::kF16) {
      std::uint32_t largest = 0;  // largest magnitude of each half of the words
#pragma unroll
      for (int i = 0; i < 8; ++i) largest = __vmaxu2(largest, words[i] & 0x7fff7fffU);
      largest = max(largest & 0xffffU, largest >> 16);
      const unsigned lanes = 0xffU << (threadIdx.x % 32 / 8 * 8);
#pragma unroll
      for (int distance = 4; distance > 0; distance /= 2) {
        largest = max(largest, __shfl_xor_sync(lanes, largest, distance));
      }
      // The largest magnitude goes to [2^14, 2^15); the factor and its inverse stay normal. Heads that are not finite
      // need no scale.
      const std::uint32_t exponent = min(max(largest >> 7, 16U), 253U);
      const float up = __uint_as_float((2 * 127 + 14 - exponent) << 23);
      // Halved too: positive_part() gives twice the value.
      weight = __fmul_rn(weight, __uint_as_float((exponent - 15) << 23));
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float first = __fmul_rn(__uint_as_float(words[i] << 16), up);
        const float second = __fmul_rn(__uint_as_float(words[i] & 0xffff0000U), up);
        asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(words[i]) : "f"(second), "f"(first));
      }
    }
    Operand::pair_up(words);
    // The columns of the part's begin and of a pair within it have no bits in common.
    const int column = Operand::column(index * 16);
    int offset = head * 128 + column / 64 * (kQueryTileBytes / 2) + ((column % 64 * 2) ^ (head % 8 * 16));
    asm volatile("" : "+r"(offset));  // eight of them are not worth keeping from run to run
    std::byte* const tile = queries + head / kTileHeads * (kQueryTileBytes - kTileHeads * 128);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      *reinterpret_cast<std::uint32_t*>(tile + (offset ^ (Operand::column(Operand::pair_dim(i)) * 2))) = words[i];
    }
    if (!Operand::kF16 && head >= p_.heads) weight = __uint_as_float(kNoHead);
    if (index == 0) weights[weight_place(head)] = weight;
  }

  const IndexerTopkParams& p_;
  int head_tiles_;
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
