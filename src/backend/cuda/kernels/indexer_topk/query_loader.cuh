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
inline constexpr int kQueryLoaders = 384;  // threads that load queries

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Weight of a head that does not exist: a NaN that no arithmetic gives.
inline constexpr std::uint32_t kNoHead = 0x7f8dead1U;

// Place of a head of a tile among the tile's weights: the sixteen of a lane's columns lie side by side.
__device__ inline std::uint32_t weight_place(std::uint32_t head) {
  return head % 8 / 2 * 16 + head / 8 * 2 + head % 2;
}

inline constexpr std::uint32_t kHeadParts = 8;  // lanes that share a head

// Sixteen dims of a head, and its weight.
struct QueryPart {
  std::uint32_t words[8] = {};
  float weight = 0.0F;
};

// Queries in shared memory, of a token: [head tiles][two halves of the dims][64 heads][128 B], swizzled, and
// their weights [head tiles * 64]. Integers take one half; the other one may have those of another run.
template <class Operand>
class QueryLoader {
 public:
  __device__ QueryLoader(const IndexerTopkParams& params, int head_tiles) : p_(params), head_tiles_(head_tiles) {}

  // What a thread brings of a token whose heads fit one tile: on its way, while other things are done.
  static constexpr int kTokenParts = (kTileHeads * kHeadParts + kQueryLoaders - 1) / kQueryLoaders;
  using TokenParts = QueryPart[kTokenParts];

  // Where the thread's first part of a token's queries lies, and its head's weight.
  struct PartPlace {
    const uint4* units;
    const bf16* weight;
  };
  [[nodiscard]] __device__ PartPlace place_of_token(std::int64_t token) const {
    return place_of(token, threadIdx.x / kHeadParts, threadIdx.x % kHeadParts);
  }
  __device__ void fetch_token(const PartPlace& place, TokenParts& part) const {
#pragma unroll
    for (int i = 0; i < kTokenParts; ++i) {
      const std::uint32_t head = threadIdx.x / kHeadParts + i * kHeadsAtOnce;
      const PartPlace own{place.units + i * kHeadsAtOnce * kHeadUnits, place.weight + i * kHeadsAtOnce};
      bf16 weight{};
      part[i] = head < kTileHeads ? fetch(own, head, weight) : QueryPart{};
      part[i].weight = to_float(weight);
    }
  }
  // False where the thread has seen that integers cannot hold them.
  __device__ bool place_token(const TokenParts& fetched, std::byte* queries, float* weights) const {
    bool held = true;
#pragma unroll
    for (int i = 0; i < kTokenParts; ++i) {
      const std::uint32_t head = threadIdx.x / kHeadParts + i * kHeadsAtOnce;
      if (head >= kTileHeads) continue;  // the same for a warp
      QueryPart part = fetched[i];
      held &= place(part, head, threadIdx.x % kHeadParts, queries, weights);
    }
    return held;
  }

  // Tokens from `token` on, by kQueryLoaders threads, each kAhead parts of heads at a time: a fetch takes as long as
  // memory does. Returns those, a bit each, of which the thread has seen that integers cannot hold them.
  template <int kAhead>
  __device__ std::uint32_t load(std::int64_t token, int tokens, std::byte* queries, float* weights) const {
    const std::uint32_t index = threadIdx.x % kHeadParts;
    const std::uint32_t heads = static_cast<std::uint32_t>(tokens) * kTileHeads;
    std::uint32_t fp16_tokens = 0;
#pragma unroll 1
    for (std::uint32_t tile = 0; tile < static_cast<std::uint32_t>(head_tiles_); ++tile) {
#pragma unroll 1
      for (std::uint32_t first = threadIdx.x / kHeadParts; first < heads; first += kAhead * kHeadsAtOnce) {
        QueryPart part[kAhead];
        // Weights stay as they lie in memory: what is made of one here would be waited for before the next part.
        bf16 weight[kAhead] = {};
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const std::uint32_t head = first + i * kHeadsAtOnce;
          if (head < heads) {
            const std::uint32_t own = tile * kTileHeads + head % kTileHeads;
            part[i] = fetch(place_of(token + head / kTileHeads, own, index), own, weight[i]);
          }
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const std::uint32_t head = first + i * kHeadsAtOnce;
          if (head >= heads) continue;  // the same for a warp
          part[i].weight = to_float(weight[i]);
          const std::uint32_t slot = head / kTileHeads * static_cast<std::uint32_t>(head_tiles_) + tile;
          const bool held = place(part[i], tile * kTileHeads + head % kTileHeads, index,
                                  queries + slot * kQueryTileBytes, weights + slot * kTileHeads);
          fp16_tokens |= (held ? 0U : 1U) << (head / kTileHeads);
        }
      }
    }
    return fp16_tokens;
  }

 private:
  static constexpr std::uint32_t kHeadsAtOnce = kQueryLoaders / kHeadParts;
  static constexpr std::uint32_t kHeadUnits = kIndexHeadDim * sizeof(bf16) / sizeof(uint4);

  // Part `index` of a head.
  [[nodiscard]] __device__ PartPlace place_of(std::int64_t token, std::uint32_t head, std::uint32_t index) const {
    return {reinterpret_cast<const uint4*>(p_.q + (token * p_.heads + head) * kIndexHeadDim + index * 16),
            p_.head_weight + token * p_.head_weight_stride + head};
  }
  // What lies there, and the weight that it is to have: zeros for a head that does not exist.
  __device__ QueryPart fetch(const PartPlace& place, std::uint32_t head, bf16& weight) const {
    QueryPart part;
    if (!exists(head)) return part;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 unit = place.units[i];
      part.words[4 * i] = unit.x, part.words[4 * i + 1] = unit.y;
      part.words[4 * i + 2] = unit.z, part.words[4 * i + 3] = unit.w;
    }
    weight = *place.weight;
    return part;
  }

  [[nodiscard]] __device__ bool exists(std::uint32_t head) const {
    return head < static_cast<std::uint32_t>(p_.heads);
  }

  // The largest magnitude of the head, as BF16. All lanes call together, eight for a head.
  __device__ static std::uint32_t largest_of_head(const std::uint32_t (&words)[8]) {
    std::uint32_t largest = 0;  // two: largest of the lower and of the upper halves of words
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = __vmaxu2(largest, words[i] & 0x7fff7fffU);
    largest = max(largest & 0xffffU, largest >> 16);
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) {
      largest = max(largest, __shfl_xor_sync(0xffffffffU, largest, distance));
    }
    return largest;
  }

  // Writes part `index` of a head to its tile, and its weight. False where integers cannot hold it.
  __device__ bool place(QueryPart& part, std::uint32_t head, std::uint32_t index, std::byte* tile,
                        float* weights) const {
    float weight = __fmul_rn(part.weight, p_.head_scale);
    bool held = true;
    if constexpr (Operand::kKind == OperandKind::kInteger) {
      held = place_integers(part.words, weight, head % kTileHeads, index, tile);
    } else {
      place_values(part.words, weight, head % kTileHeads, index, tile);
      if (Operand::kKind == OperandKind::kBf16 && !exists(head)) weight = __uint_as_float(kNoHead);
    }
    if (index == 0) weights[weight_place(head % kTileHeads)] = weight;
    return held;
  }

  // FP16 queries are scaled by a power of two so that the head's largest magnitude stands near the top of the
  // range: what FP16 then cannot hold is below 2^-32 of it. The weight takes the factor back.
  __device__ static void place_values(std::uint32_t (&words)[8], float& weight, std::uint32_t head, std::uint32_t index,
                                      std::byte* tile) {
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
    const auto column = static_cast<std::uint32_t>(Operand::column(static_cast<int>(index) * 16));
    std::uint32_t offset = head * 128 + column / 64 * (kQueryTileBytes / 2) + ((column % 64 * 2) ^ (head % 8 * 16));
    asm volatile("" : "+r"(offset));  // eight of them are not worth keeping from run to run
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      *reinterpret_cast<std::uint32_t*>(tile + (offset ^ (Operand::column(Operand::pair_dim(i)) * 2))) = words[i];
    }
  }

  // Integers are a head's values times a power of two that brings the largest magnitude to [64, 128). Where it is far
  // from one, a value is no integer of two significant bits then, or the weight would leave terms of a score that are
  // not normal, the head is not for integers. Values below 2^-64 of the largest, which FP16 does not hold either, may
  // count as zeros.
  __device__ static bool place_integers(const std::uint32_t (&words)[8], float& weight, std::uint32_t head,
                                        std::uint32_t index, std::byte* tile) {
    constexpr std::uint32_t kOne = 127;   // exponent of one
    constexpr float kRounds = 0x1.8p23F;  // in a sum with which the lowest byte is an integer's
    const std::uint32_t largest = largest_of_head(words);
    const std::uint32_t exponent = largest == 0 ? kOne : largest >> 7;
    weight = __fmul_rn(weight, __uint_as_float((exponent + kIntegerWeightBits - 6) << 23));
    const bool near_one = exponent >= kOne - 40 && exponent <= kOne + 33;
    // 2^23 and 2^127, as bits.
    constexpr std::uint32_t kLeastWeight = (kOne + 23) << 23;
    constexpr std::uint32_t kWeightLimit = (kOne + 127) << 23;
    const std::uint32_t magnitude = __float_as_uint(fabsf(weight));
    const bool weighs = (magnitude == 0) | (magnitude - kLeastWeight < kWeightLimit - kLeastWeight);
    const float up = __uint_as_float((2 * kOne + 6 - exponent) << 23);
    std::uint32_t bits[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      // The lower half of a word adds less than half an integer to the magnitude of the upper one.
      const std::uint32_t value = i % 2 == 0 ? words[i / 2] << 16 : words[i / 2];
      bits[i] = __float_as_uint(__fmaf_rn(__uint_as_float(value), up, kRounds));
    }
    const auto column = static_cast<std::uint32_t>(Operand::column(static_cast<int>(index) * 16));
    const std::uint32_t offset = head * 128 + (column ^ (head % 8 * 16));
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const std::uint32_t four = permute_bytes(permute_bytes(bits[i], bits[i + 1], 0x0040U),
                                               permute_bytes(bits[i + 2], bits[i + 3], 0x0040U), 0x5410U);
      *reinterpret_cast<std::uint32_t*>(tile + (offset ^ Operand::column(i))) = four;
    }
    return (near_one & weighs & has_two_bits(words, exponent - 6)) != 0;  // without branches
  }
  // Whether each value is an integer of at most two significant bits times a power of two of this exponent.
  __device__ static bool has_two_bits(const std::uint32_t (&words)[8], std::uint32_t exponent) {
    // Two values at a time. With its second bit turned, the least magnitude is that of a value whose last bit is the
    // lowest; one off, zeros are the greatest.
    constexpr std::uint32_t kSecondBit = 0x00400040U;
    constexpr std::uint32_t kSecondBitAndOne = 0xffbfffbfU;  // subtracted
    std::uint32_t all = 0;
    std::uint32_t least = 0xffffffffU;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      all |= words[i];
      least = __viaddmin_u16x2((words[i] & 0x7fff7fffU) ^ kSecondBit, kSecondBitAndOne, least);
    }
    least = min(least & 0xffffU, least >> 16);
    return (all & 0x003f003fU) == 0 && least + 1 >= exponent << 7;
  }

  const IndexerTopkParams& p_;
  int head_tiles_;
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
