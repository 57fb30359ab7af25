// Blocks of 128 values of a row, encoded where a matrix instruction left them: a thread has pairs of two rows, eight
// apart, and four neighbouring lanes have a row.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/encode_e4m3.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

// Tiles of eight values that a block consists of.
inline constexpr int kBlockTiles = static_cast<int>(kEncodedBlockValues) / 8;
// A thread's BF16 values of a block: of each tile its lane's pair, of two rows.
using BlockPairs = std::uint32_t[2][kBlockTiles];

// How a thread's two blocks are encoded. All lanes of a warp make one together.
struct BlockScales {
  std::uint8_t code[2];     // E8M0
  std::uint32_t factor[2];  // encode_scaled_pair()'s

  // Makes NaN of infinities, which have its code.
  __device__ __forceinline__ explicit BlockScales(BlockPairs& pairs) {
    std::uint32_t most[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) most[i] = greatest(pairs[i], [](std::uint32_t pair) { return pair; });
    // A warp at a time.
    if (__any_sync(0xffffffffu, (non_finite_halves(most[0]) | non_finite_halves(most[1])) != 0)) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        most[i] = greatest(pairs[i], finite_magnitudes);
        for (std::uint32_t& pair : pairs[i]) pair |= non_finite_halves(pair);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      code[i] = scale_code_of(most[i] & 0x7fff7fffu);
      factor[i] = reciprocal_pair(code[i]);
    }
  }

 private:
  // Of a row's pairs, by its four lanes.
  template <class Magnitudes>
  __device__ __forceinline__ static std::uint32_t greatest(const std::uint32_t (&pairs)[kBlockTiles],
                                                           const Magnitudes& magnitudes) {
    std::uint32_t most = 0;
#pragma unroll
    for (const std::uint32_t pair : pairs) most = greater_magnitudes(most, magnitudes(pair));
    most = greater_magnitudes(most, __shfl_xor_sync(0xffffffffu, most, 1));
    return greater_magnitudes(most, __shfl_xor_sync(0xffffffffu, most, 2));
  }
};

// Codes wait in shared memory as the copy engine takes them: a block's 128 in a row, the 16-byte unit u of row r at
// unit u ^ (r % 8). `rows`: where they begin, a multiple of 1024; `first_row`: of the warp's 16.
inline constexpr int kCodeRowBytes = static_cast<int>(kEncodedBlockValues);
__device__ __forceinline__ std::uint32_t code_address(std::uint32_t rows, int first_row, int lane) {
  const int row = first_row + lane / 4;
  return rows + row * kCodeRowBytes + row % 8 * 16 + lane % 4 * 2;
}
// `to`: code_address().
__device__ __forceinline__ void stage_codes(const BlockPairs& pairs, const BlockScales& scales, std::uint32_t to) {
#pragma unroll
  for (int tile = 0; tile < kBlockTiles; ++tile) {
    const std::uint32_t at = to ^ (tile / 2 * 16);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      asm volatile("st.shared.u16 [%0], %1;\n" ::"r"(at + i * 8 * kCodeRowBytes + tile % 2 * 8),
                   "h"(encode_scaled_pair(pairs[i][tile], scales.factor[i]))
                   : "memory");
    }
  }
}

}  // namespace dsv4rt::cuda
