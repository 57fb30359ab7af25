// What the tile kernel takes: the linears of one step that run as one launch.
//
// Terms: a row tile is 64 outputs; a stage of the ring holds 64 inputs of every token (128 bytes of BF16) and the
// row tiles' weights for the same inputs; an item is the output of a block's row
// tiles for kTokens tokens; a segment is one of the fixed parts that the inputs are cut into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda.h>

#include "base/bfloat16.h"

namespace dsv4rt::cuda {

inline constexpr int kRowTile = 64;
inline constexpr int kStageInputs = 64;
inline constexpr int kStageBytesOfInput = 2 * kStageInputs;
inline constexpr int kScaleBlockInputs = 128;  // inputs that share a scale
inline constexpr int kStagesPerScale = kScaleBlockInputs / kStageInputs;
inline constexpr int kTileStepInputs = 16;  // of a matrix instruction on BF16
inline constexpr int kMaxProblems = 16;
inline constexpr int kMaxStages = 24;  // of the ring
inline constexpr int kMaxSegments = 8;
inline constexpr int kGemvTokens = 8;    // most of the gemv kernel: the columns of its matrix instruction
inline constexpr int kRowTileWarps = 4;  // of a warpgroup, 16 rows each

// How weights and inputs meet in the matrix instruction.
enum class TileKind : std::uint8_t {
  kBf16,  // BF16 weights
  kFp8,   // E4M3 weights, widened to BF16 with their power-of-two scale
};

// Bytes of one row tile's weights in a stage.
constexpr int stage_tile_bytes(TileKind kind) {
  return kind == TileKind::kFp8 ? 4096 : 8192;
}

struct LinearProblem {
  const std::byte* codes = nullptr;  // [row_tiles][stages][stage_tile_bytes], see packed_linear.h
  const float* scales = nullptr;     // [row_tiles][K / 128]; null for kBf16
  void* y = nullptr;                 // [T, N] of bf16 or float
  std::int64_t y_stride = 0;
  std::int32_t row_tiles = 0;     // N / 64
  std::int32_t row_groups = 0;    // of the block's row tiles
  std::int32_t scale_blocks = 0;  // K / 128
  std::int32_t first_item = 0;
  std::int16_t input = 0;  // index into LinearParams::inputs or rows
  TileKind kind = TileKind::kBf16;
  bool float_output = false;
  bool wide_stores = false;  // y and its rows are 16-byte aligned
};

// What a problem multiplies with, for kernels that read it without a tensor map.
struct InputRows {
  const bf16* x = nullptr;  // [T, K], rows x_stride apart; 16-byte aligned, as its rows are
  std::int64_t x_stride = 0;
  bool rounds = false;  // to E4M3 times a power of two, in blocks of 128
};

// RMS norm of the whole rows of x in front of the products, as rms_norm() computes it.
struct InputNorm {
  const bf16* weight = nullptr;  // [K]; null: no norm
  float eps = 0;
};

struct LinearParams {
  CUtensorMap inputs[kMaxProblems];  // [T][K]; boxes of 128 bytes x kTokens rows, 128-byte swizzle
  InputRows rows[kMaxProblems];      // instead of `inputs` where the blocks bring inputs themselves
  InputNorm norm;                    // of `rows`
  LinearProblem problems[kMaxProblems];
  std::int32_t tokens = 0;  // T
  std::int32_t token_tiles = 0;
  std::int32_t problem_count = 0;
  std::int32_t items = 0;
  std::int32_t segments = 1;      // of every problem; whole ones for each block
  std::int32_t stages = 0;        // of the ring
  std::int32_t stage_bytes = 0;   // a multiple of 1024
  std::int32_t input_offset = 0;  // of the inputs in a stage; weights come first
  std::int32_t ring_bytes = 0;    // of a block of the gemv kernel, of a warpgroup of the split-K kernel
  std::int32_t sum_bytes = 0;     // of a row tile: staged output or exchanged sums
};
static_assert(sizeof(LinearParams) <= 4096, "kernel parameters that every driver takes");

// x rounded to E4M3 times a power of two, in blocks of 128 inputs.
struct RoundInputParams {
  const bf16* x = nullptr;  // [T, K], rows x_stride apart
  std::int64_t x_stride = 0;
  bf16* rounded = nullptr;  // [T, K]
  std::int32_t tokens = 0;
  std::int32_t blocks = 0;  // K / 128
};

}  // namespace dsv4rt::cuda
