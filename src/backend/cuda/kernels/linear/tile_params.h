// What the tile kernel takes: the linears of one step that run as one launch.
//
// Terms: a row tile is 64 outputs; a stage of the ring holds 128 bytes of every token's inputs (128 E4M3 or
// 64 BF16 values) and the row tiles' weights for the same inputs; an item is the output of a block's row
// tiles for kTokens tokens; a segment is one of the fixed parts that the inputs are cut into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda.h>

#include "base/bfloat16.h"

namespace dsv4rt::cuda {

inline constexpr int kRowTile = 64;
inline constexpr int kStageBytesOfInput = 128;
inline constexpr int kScaleBlockInputs = 128;  // inputs that share a scale
inline constexpr int kTileStepInputs = 16;     // of a matrix instruction on BF16
inline constexpr int kMaxTileProblems = 16;
inline constexpr int kMaxStages = 24;  // of the ring
inline constexpr int kMaxSegments = 4;
inline constexpr int kRowTileWarps = 4;  // of a warpgroup, 16 rows each

// How weights and inputs meet in the matrix instruction.
enum class TileKind : std::uint8_t {
  kBf16,     // BF16 weights, BF16 inputs
  kFp8,      // E4M3 weights, E4M3 inputs, both with power-of-two scales per 128 inputs
  kFp8Wide,  // E4M3 weights widened to BF16 with their scale, BF16 inputs
};

constexpr int stage_inputs(TileKind kind) {
  return kind == TileKind::kFp8 ? 128 : 64;
}
// Bytes of one row tile's weights in a stage.
constexpr int stage_tile_bytes(TileKind kind) {
  return kind == TileKind::kFp8Wide ? 4096 : 8192;
}

struct TileProblem {
  const std::byte* codes = nullptr;  // [row_tiles][stages][stage_tile_bytes], see packed_linear.h
  const float* scales = nullptr;     // [row_tiles][K / 128]; null for kBf16
  void* y = nullptr;                 // [T, N] of bf16 or float
  std::int64_t y_stride = 0;
  std::int32_t row_tiles = 0;     // N / 64
  std::int32_t row_groups = 0;    // of the block's row tiles
  std::int32_t scale_blocks = 0;  // K / 128
  std::int32_t first_item = 0;
  std::int16_t input = 0;  // index into TileParams::inputs
  TileKind kind = TileKind::kBf16;
  bool float_output = false;
  bool wide_stores = false;  // y and its rows are 16-byte aligned
};

struct TileParams {
  CUtensorMap inputs[kMaxTileProblems];  // [T][K]; boxes of 128 bytes x kTokens rows, 128-byte swizzle
  TileProblem problems[kMaxTileProblems];
  const float* input_scales = nullptr;  // kFp8: [K / 128][input_scale_stride]
  std::int32_t input_scale_stride = 0;  // T rounded up to 8
  std::int32_t tokens = 0;              // T
  std::int32_t token_tiles = 0;
  std::int32_t problem_count = 0;
  std::int32_t items = 0;
  std::int32_t segments = 1;      // of every problem: 1, 2 or kMaxSegments; whole ones for each block
  std::int32_t stages = 0;        // of the ring
  std::int32_t stage_bytes = 0;   // a multiple of 1024
  std::int32_t input_offset = 0;  // of the inputs in a stage; weights come first
  std::int32_t sum_bytes = 0;     // of a row tile: parked total, staged output or exchanged sums
};
static_assert(sizeof(TileParams) <= 4096, "kernel parameters that every driver takes");

// E4M3 codes of x and their scales: blocks of 128 inputs, power-of-two scale.
struct QuantizeInputParams {
  const bf16* x = nullptr;  // [T, K], rows x_stride apart
  std::int64_t x_stride = 0;
  std::uint8_t* codes = nullptr;  // [T, K]
  bf16* rounded = nullptr;        // [T, K]
  float* scales = nullptr;        // [K / 128][scale_stride]
  std::int32_t scale_stride = 0;
  std::int32_t tokens = 0;
  std::int32_t blocks = 0;  // K / 128
};

}  // namespace dsv4rt::cuda
