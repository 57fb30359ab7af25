// The queries of tokens and their heads' weights, brought to shared memory as the matrix instruction takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/kernels/indexer_topk/index_mma.cuh"
#include "backend/cuda/kernels/indexer_topk/integer_keys.cuh"
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
// their weights [head tiles * 64]. Integers take the first half alone.
template <class Operand>
class QueryLoader {
 public:
  __device__ QueryLoader(const IndexerTopkParams& params, int head_tiles) : p_(params), head_tiles_(head_tiles) {}

  // Tokens from `token` on, kAhead of them at a time: a fetch takes as long as memory does. Returns those, a bit each,
  // of which the thread has seen that integers cannot hold them.
  template <int kAhead>
  __device__ std::uint32_t load(std::int64_t token, int tokens, std::byte* queries, float* weights) const {
    const int thread = static_cast<int>(threadIdx.x);
    std::uint32_t fp16_tokens = 0;
    if (thread >= kThreads) return fp16_tokens;
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
            if (first + i >= tokens) continue;
            const bool held = place(part[i][j], head(tile, thread, j), thread % 8, queries + slot * kQueryTileBytes,
                                    weights + slot * kTileHeads);
            if (!held) fp16_tokens |= 1U << (first + i);
          }
        }
      }
    }
    return fp16_tokens;
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

  // The largest magnitude of the head, as BF16. The eight lanes of a head call together.
  __device__ static std::uint32_t largest_of_head(const std::uint32_t (&words)[8]) {
    std::uint32_t largest = 0;  // two: largest of the lower and of the upper halves of words
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = __vmaxu2(largest, words[i] & 0x7fff7fffU);
    largest = max(largest & 0xffffU, largest >> 16);
    const unsigned lanes = 0xffU << (threadIdx.x % 32 / 8 * 8);
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) {
      largest = max(largest, __shfl_xor_sync(lanes, largest, distance));
    }
    return largest;
  }

  // Writes part `index` of a head, and its weight. False where integers cannot hold it.
  __device__ bool place(Part& part, int head, int index, std::byte* queries, float* weights) const {
    float weight = __fmul_rn(part.weight, p_.head_scale);
    bool held = true;
    if constexpr (Operand::kKind == OperandKind::kInteger) {
      held = place_integers(part.words, weight, head, index, queries);
    } else {
      place_values(part.words, weight, head, index, queries);
    }
    if (index == 0) weights[weight_place(head)] = weight;
    return held;
  }

  // FP16 queries are scaled by a power of two so that the head's largest magnitude stands near the top of the
  // range: what FP16 then cannot hold is below 2^-32 of it. The weight takes the factor back.
  __device__ void place_values(std::uint32_t (&words)[8], float& weight, int head, int index,
                               std::byte* queries) const {
    if constexpr (Operand::kKind == OperandKind::kF16) {
      // The largest magnitude goes to [2^14, 2^15); the factor and its inverse stay normal. Heads that are not finite
      // need no scale.
      const std::uint32_t exponent = min(max(largest_of_head(words) >> 7, 16U), 253U);
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
    if (Operand::kKind == OperandKind::kBf16 && head >= p_.heads) weight = __uint_as_float(kNoHead);
  }

  // Integers are a head's values times a power of two that brings the largest magnitude to [64, 128). Where it is far
  // from one, a value is no integer then, or the weight would leave terms of a score that are not normal, the head is
  // not for integers.
  __device__ bool place_integers(const std::uint32_t (&words)[8], float& weight, int head, int index,
                                 std::byte* queries) const {
    constexpr std::uint32_t kOne = 127;   // exponent of one
    constexpr float kRounds = 0x1.8p23F;  // in a sum with which the lowest byte is an integer's
    const std::uint32_t largest = largest_of_head(words);
    const std::uint32_t exponent = largest == 0 ? kOne : largest >> 7;
    bool held = exponent >= kOne - 40 && exponent <= kOne + 33;
    const float up = __uint_as_float((2 * kOne + 6 - exponent) << 23);
    weight = __fmul_rn(weight, __uint_as_float((exponent + kIntegerWeightBits - 6) << 23));
    held = held && (weight == 0.0F || (fabsf(weight) >= 0x1p23F && fabsf(weight) < 0x1p127F));
    std::uint32_t bits[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const std::uint32_t value = i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000U;
      const float scaled = __fmul_rn(__uint_as_float(value), up);
      const float rounded = __fadd_rn(scaled, kRounds);
      held = held && __fsub_rn(rounded, kRounds) == scaled;
      bits[i] = __float_as_uint(rounded);
    }
    std::byte* const tile = queries + head / kTileHeads * (kQueryTileBytes - kTileHeads * 128);
    const int offset = head * 128 + (Operand::column(index * 16) ^ (head % 8 * 16));
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const std::uint32_t four = permute_bytes(permute_bytes(bits[i], bits[i + 1], 0x0040U),
                                               permute_bytes(bits[i + 2], bits[i + 3], 0x0040U), 0x5410U);
      *reinterpret_cast<std::uint32_t*>(tile + (offset ^ Operand::column(i))) = four;
    }
    return held;
  }

  const IndexerTopkParams& p_;
  int head_tiles_;
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
