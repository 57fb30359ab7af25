// Norm and rotation of queries in attention itself (AttendParams::query_eps), with the bytes of query_heads().
//
// A quad of lanes holds a head as fragments of matrices: of 16 values lane j of the quad has the pairs j and j + 4.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"
#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/mma_tile.cuh"
#include "backend/cuda/kernels/common/reduce.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/cuda/kernels/query/head_norm.cuh"

namespace dsv4rt::cuda {

// Sums a head's squares in the order of sum_in_chains, 16 values after the other.
class HeadSquares {
 public:
  // The lane's pairs of the next 16 values.
  __device__ void add(std::uint32_t pair, std::uint32_t far_pair) {
    add(pair, even_[0], odd_[0]);
    add(far_pair, even_[1], odd_[1]);
  }
  // What the head is multiplied by, in both halves of a word and in all lanes of the quad.
  [[nodiscard]] __device__ std::uint32_t scale(float eps) const {
    static_assert(kSumChains == 16);
    float even = __fadd_rn(even_[0], even_[1]);
    float odd = __fadd_rn(odd_[0], odd_[1]);
#pragma unroll
    for (int distance = 2; distance > 0; distance /= 2) {
      even = __fadd_rn(even, __shfl_xor_sync(kFullWarp, even, distance));
      odd = __fadd_rn(odd, __shfl_xor_sync(kFullWarp, odd, distance));
    }
    return both_halves(head_scale(__fadd_rn(even, odd), eps));
  }

 private:
  __device__ static void add(std::uint32_t pair, float& even, float& odd) {
    const std::uint32_t squares = multiply_pairs(pair, pair);
    even = __fadd_rn(even, low_value(squares));
    odd = __fadd_rn(odd, high_value(squares));
  }

  float even_[2] = {0.0F, 0.0F};
  float odd_[2] = {0.0F, 0.0F};
};

// Turns a pair by the rotation that attention's outputs are turned back by.
__device__ inline void turn_query(const Rotation& back, std::uint32_t& pair) {
  float even = low_value(pair);
  float odd = high_value(pair);
  rotate_pair({.cosine = back.cosine, .sine = -back.sine}, even, odd);
  pair = round_pair(even, odd);
}

// Norms and turns eight heads in atoms, from `first_head` on, a multiple of 8, by one warp. `back`: the rotations of
// outputs; null: heads are not turned.
__device__ inline void norm_eight_heads(std::uint32_t atoms, int first_head, float eps, const Rotation* back) {
  constexpr int kPartUnits = 4;
  constexpr int kParts = kHeadDim / (kPartUnits * kUnitValues);
  constexpr int kTogether = 2;  // parts: an atom's 64 values
  static_assert(kNopeDim == (kParts - kTogether) * kPartUnits * kUnitValues, "the last atom is turned");
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t first = atoms + atom_offset(first_head + lane % 8, lane / 8);
  const auto address = [&](int part) { return (first ^ part % 2 * kPartUnits * kUnitBytes) + part / 2 * kAtomBytes; };
  HeadSquares squares;
  __syncwarp();  // lanes load together, and may have waited for queries each for itself
  // In loops, although registers would hold a head: less code, which comes from memory where kernels alternate.
#pragma unroll 1
  for (int begin = 0; begin < kParts; begin += 2 * kTogether) {
    std::uint32_t words[2 * kTogether][kPartUnits];
#pragma unroll
    for (int i = 0; i < 2 * kTogether; ++i) load_matrix_x4(words[i], address(begin + i));
#pragma unroll
    for (auto& four : words) {
      squares.add(four[0], four[1]);
      squares.add(four[2], four[3]);
    }
  }
  const std::uint32_t scale = squares.scale(eps);
#pragma unroll 1
  for (int begin = 0; begin < kParts; begin += kTogether) {
    std::uint32_t words[kTogether][kPartUnits];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) load_matrix_x4(words[i], address(begin + i));
#pragma unroll
    for (auto& four : words) {
#pragma unroll
      for (std::uint32_t& pair : four) pair = multiply_pairs(pair, scale);
    }
    if (back != nullptr && begin == kParts - kTogether) {
#pragma unroll
      for (int i = 0; i < kTogether * kPartUnits; ++i) {
        turn_query(back[4 * i + lane % 4], words[i / kPartUnits][i % kPartUnits]);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      store_fragments(address(begin + i), words[i][0], words[i][1], words[i][2], words[i][3]);
    }
  }
}

}  // namespace dsv4rt::cuda
