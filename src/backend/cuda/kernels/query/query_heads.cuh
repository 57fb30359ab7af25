// Norm and rotation of query heads, for a warp and four heads of one token.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/cuda/kernels/query/head_norm.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr int kWarpQueryHeads = 4;

// Squares of a head as BF16 pairs: 32 places of 16 chains, 32 bytes a place. Heads lie 32 bytes further apart, so
// that the eight lanes of each of four heads read different banks.
inline constexpr int kPlaceWords = kSumChains / 2;
inline constexpr int kPlaces = kHeadDim / kSumChains;
inline constexpr int kSquareWordsOfHead = kPlaces * kPlaceWords + kPlaceWords;

struct QueryHeadsShared {
  uint4 squares[kWarpQueryHeads * kSquareWordsOfHead / 4];
};

// The sum over a head's squares in the order of sum_in_chains: lane l holds chains 2 * (l % 8) and the next of
// head l / 8. Every lane of a head's eight gets its head's sum.
__device__ inline float sum_of_head(const QueryHeadsShared& shared, int lane) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(shared.squares) + lane / kPlaceWords * kSquareWordsOfHead +
                      lane % kPlaceWords;
  float even = 0.0F;
  float odd = 0.0F;
#pragma unroll 16
  for (int place = 0; place < kPlaces; ++place) {
    const std::uint32_t word = words[place * kPlaceWords];
    even = __fadd_rn(even, low_value(word));
    odd = __fadd_rn(odd, high_value(word));
  }
#pragma unroll
  for (int distance = kPlaceWords / 2; distance > 0; distance /= 2) {
    even = __fadd_rn(even, __shfl_xor_sync(kFullWarp, even, distance));
    odd = __fadd_rn(odd, __shfl_xor_sync(kFullWarp, odd, distance));
  }
  return __fadd_rn(even, odd);
}

// Heads first_head .. first_head + 3 of `token`, as far as there are so many. Called by a whole warp; `shared` is
// the warp's own. A lane holds values 8 * lane .. and 256 + 8 * lane .. of every head. Padding gets zeros.
__device__ inline void query_heads(const QueryParams& p, std::int64_t token, int first_head, QueryHeadsShared& shared) {
  constexpr int kHeadUnits = kHeadDim / 8;  // units of 16 bytes in a head
  constexpr int kFirstRotatedLane = (kNopeDim - kHeadDim / 2) / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = min(kWarpQueryHeads, p.heads - first_head);
  auto* q = reinterpret_cast<uint4*>(p.q + (token * p.heads + first_head) * kHeadDim) + lane;
  const bool real = p.step.token_sequence[token] >= 0;
  const bool rotates = p.rope.inverse_frequency != nullptr;
  // A pair a lane; then the four that each of the last eight lanes rotates by.
  Rotation rotation[4];
  if (rotates) {
    const Rotation own = rotation_of(p.rope, p.step.token_position[token], lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rotation[i] = {.cosine = __shfl_sync(kFullWarp, own.cosine, (4 * lane + i) % 32),
                     .sine = __shfl_sync(kFullWarp, own.sine, (4 * lane + i) % 32)};
    }
    static_assert(4 * kFirstRotatedLane % 32 == 0);
  }
  wait_for_predecessors();

  std::uint32_t words[kWarpQueryHeads][2][4];
#pragma unroll
  for (int head = 0; head < kWarpQueryHeads; ++head) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 unit = real && head < heads ? q[head * kHeadUnits + 32 * half] : uint4{};
      words[head][half][0] = unit.x;
      words[head][half][1] = unit.y;
      words[head][half][2] = unit.z;
      words[head][half][3] = unit.w;
    }
  }
#pragma unroll
  for (int head = 0; head < kWarpQueryHeads; ++head) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto& w = words[head][half];
      shared.squares[head * kSquareWordsOfHead / 4 + 32 * half + lane] =
          make_uint4(multiply_pairs(w[0], w[0]), multiply_pairs(w[1], w[1]), multiply_pairs(w[2], w[2]),
                     multiply_pairs(w[3], w[3]));
    }
  }
  __syncwarp();
  const float own_scale = head_scale(sum_of_head(shared, lane), p.eps);
#pragma unroll
  for (int head = 0; head < kWarpQueryHeads; ++head) {
    const std::uint32_t scale = both_halves(__shfl_sync(kFullWarp, own_scale, head * kPlaceWords));
    if (head >= heads) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      auto& w = words[head][half];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[i] = multiply_pairs(w[i], scale);
        if (half == 0 || lane < kFirstRotatedLane || !rotates) continue;
        float even = low_value(w[i]);
        float odd = high_value(w[i]);
        rotate_pair(rotation[i], even, odd);
        w[i] = round_pair(even, odd);
      }
      q[head * kHeadUnits + 32 * half] = make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
}

}  // namespace dsv4rt::cuda
