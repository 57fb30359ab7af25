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
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t first = atoms + atom_offset(first_head + lane % 8, lane / 8);
  const auto address = [&](int part) { return (first ^ part % 2 * kPartUnits * kUnitBytes) + part / 2 * kAtomBytes; };
  std::uint32_t words[kParts][kPartUnits];
  HeadSquares squares;
  __syncwarp();  // lanes load together, and may have waited for queries each for itself
#pragma unroll
  for (int part = 0; part < kParts; ++part) load_matrix_x4(words[part], address(part));
#pragma unroll
  for (auto& four : words) {
    squares.add(four[0], four[1]);
    squares.add(four[2], four[3]);
  }
  const std::uint32_t scale = squares.scale(eps);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    auto& four = words[part];
#pragma unroll
    for (int i = 0; i < kPartUnits; ++i) {
      four[i] = multiply_pairs(four[i], scale);
      const int turned_unit = kPartUnits * part + i - kNopeDim / kUnitValues;
      if (turned_unit >= 0 && back != nullptr) turn_query(back[4 * turned_unit + lane % 4], four[i]);
    }
    store_fragments(address(part), four[0], four[1], four[2], four[3]);
  }
}

}  // namespace dsv4rt::cuda
