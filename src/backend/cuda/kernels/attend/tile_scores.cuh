// A thread's scores of a tile of 64 rows, as wgmma leaves them: of two heads, eight apart, four values at a time have
// two each.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"
#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

using TileScores = float[kTileRows / 2];

// A thread's `i`-th score is of row score_row(i) of the tile behind its first one. Rows are compared relative to that
// one: with constants, for which no register is kept, or spilled.
__device__ constexpr int score_row(int i) {
  return i / 4 * 8 + i % 2;
}
// Rows from the thread's first one on, of `rows` of the tile.
__device__ inline int rows_from_own(int rows) {
  return rows - static_cast<int>(threadIdx.x) % 4 * 2;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Once the products have ended: scaled scores, -infinity from row left() of the tile on.
template <class Left>
__device__ inline void scale_scores(TileScores& s, const Left& left) {
  constexpr float kScale = 0x1.6a09e6p-5f;  // 512^-0.5
  static_assert(kHeadDim == 512);
  wgmma_hold(s);
#pragma unroll
  for (float& value : s) value = __fmul_rn(value, kScale);
  const int rows = left();
  if (rows >= kTileRows) return;
  const int own = rows_from_own(rows);
#pragma unroll
  for (int i = 0; i < kTileRows / 2; ++i) {
    if (score_row(i) >= own) s[i] = -INFINITY;
  }
}

// A thread's rounded weights of a tile, of each 16 rows as products take them from registers.
using WeightWords = uint4[kTileRows / 16];

// Of weights in place of scores.
__device__ inline void round_weights(const TileScores& s, WeightWords& words) {
#pragma unroll
  for (int i = 0; i < kTileRows / 16; ++i) {
    const float(&of)[8] = *reinterpret_cast<const float(*)[8]>(&s[8 * i]);
    words[i] = make_uint4(round_pair(of[0], of[1]), round_pair(of[2], of[3]), round_pair(of[4], of[5]),
                          round_pair(of[6], of[7]));
  }
}
// To 16 heads' rows of an atom. `to`: fragment_address() of the warp's first head.
__device__ inline void store_weights(const WeightWords& words, std::uint32_t to) {
#pragma unroll
  for (int i = 0; i < kTileRows / 16; ++i) {
    store_fragments(to ^ (2 * i * kUnitBytes), words[i].x, words[i].y, words[i].z, words[i].w);
  }
}

#endif

// Maxima of the two heads over the tile's first `rows` rows.
__device__ inline void raise_maxima(const TileScores& s, int rows, float (&greatest)[2]) {
  const int own = rows_from_own(rows);
#pragma unroll
  for (int i = 0; i < kTileRows / 2; ++i) {
    if (score_row(i) < own) greatest[i % 4 / 2] = fmaxf(greatest[i % 4 / 2], s[i]);
  }
}
// Turns the maxima of a head's four threads into the head's.
__device__ inline float head_maximum(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

}  // namespace dsv4rt::cuda
