// Where cuBLASLt looks for the E4M3 scales of an NVFP4 matrix (CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3).
//
// The scales are a matrix [rows, groups]; a group is 16 neighbouring inputs of a row. Padded with zeros to whole tiles
// of 128 rows x 4 groups, it is kept tile by tile, those of the same 128 rows next to each other. Inside a tile's 512
// bytes the rows r, r + 32, r + 64 and r + 96 share 16 bytes:
//
//   (row % 32) * 16 + (row / 32) * 4 + group
//
// Source: cuBLAS documentation, "1D Block Scaling Factors Layout"; sf_outer in its offset of a tile counts tiles, not
// rows. The array begins 16-byte aligned.
#pragma once

#include <cstdint>

#include "base/arithmetic.h"

namespace dsv4rt::cuda {

inline constexpr std::int64_t kScaleTileRows = 128;
inline constexpr std::int64_t kScaleTileGroups = 4;
inline constexpr std::int64_t kScaleTileBytes = kScaleTileRows * kScaleTileGroups;

constexpr std::int64_t nvfp4_scale_bytes(std::int64_t rows, std::int64_t groups) {
  return round_up(rows, kScaleTileRows) * round_up(groups, kScaleTileGroups);
}

// The offset of the scale of (row, group) in a matrix with so many groups a row. Also for places of the padding.
constexpr std::int64_t nvfp4_scale_offset(std::int64_t row, std::int64_t group, std::int64_t groups) {
  const std::int64_t tile = row / kScaleTileRows * ceil_div(groups, kScaleTileGroups) + group / kScaleTileGroups;
  return tile * kScaleTileBytes + row % 32 * 16 + row % kScaleTileRows / 32 * 4 + group % kScaleTileGroups;
}

}  // namespace dsv4rt::cuda
