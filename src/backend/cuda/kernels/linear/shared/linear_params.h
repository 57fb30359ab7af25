// What the kernels of tile-packed weights take: the linears of one step that run as one launch.
//
// Terms: a row tile is 64 outputs; a stage of a ring holds 128 bytes of inputs of every token (64 of BF16, 128 of E4M3)
// and the row tiles' weights for the same inputs; an item is what a block or a cluster computes at a time, some row
// tiles' outputs of some tokens; a segment is one of the fixed parts that the inputs are cut into.
//
// Order of accumulation, the same for every kernel, T, token position, grid and cluster:
//   * K is cut into `segments` parts of whole 128-input blocks, by the weight's shape alone;
//   * a segment is one chain of FP32 accumulation in input order, of exact products: E4M3 weights become BF16 in
//     registers, and rounded inputs are E4M3 codes times a power of two, BF16 too. (E4M3 operands would run at
//     twice the rate, but Hopper sums their products with about 14 bits: enough to move the next rounding to E4M3
//     in one of a hundred values);
//   * segments are added in order.
// Products of E4M3 (kFp8Products) round their inputs whatever the weight's rule, and differ in what a segment is: the
// matrix instruction sums 128 inputs of codes, and that sum, times the scales of weights and inputs, is added to the
// segment's in FP32, block by block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <limits>

#include "base/bfloat16.h"

namespace dsv4rt::cuda {

inline constexpr int kRowTile = 64;
inline constexpr int kWarpgroup = 128;   // threads
inline constexpr int kRowTileWarps = 4;  // warps of a warpgroup, 16 rows each
inline constexpr int kStageInputs = 64;
inline constexpr int kStageBytesOfInput = 2 * kStageInputs;
inline constexpr int kScaleBlockInputs = 128;  // inputs that share a scale
inline constexpr int kStagesPerScale = kScaleBlockInputs / kStageInputs;
inline constexpr int kTileStepInputs = 16;  // inputs of a matrix instruction on BF16
inline constexpr int kMaxProblems = 16;     // most problems of a launch
inline constexpr int kMaxBoxedOutputs = 3;  // kTile: problems whose outputs may leave through the copy engine
inline constexpr int kMaxStages = 24;       // most stages of a ring
inline constexpr int kMaxSegments = 8;

// How weights and inputs meet in the matrix instruction.
enum class TileKind : std::uint8_t {
  kBf16,         // BF16 weights
  kFp8,          // E4M3 weights, widened to BF16 with their power-of-two scale
  kFp8Products,  // E4M3 weights and inputs (LinearPrecision::kFp8)
};

// Inputs of a stage, and stages of a block of inputs that share a scale.
constexpr int stage_inputs(TileKind kind) {
  return kind == TileKind::kFp8Products ? 2 * kStageInputs : kStageInputs;
}
constexpr int stages_per_scale(TileKind kind) {
  return kScaleBlockInputs / stage_inputs(kind);
}

// Bytes of one row tile's weights in a stage.
constexpr int stage_tile_bytes(TileKind kind) {
  return kind == TileKind::kFp8 ? 4096 : 8192;
}

// Parts of near equal length that a tile-packed weight's inputs are summed in: 1, 2, 4 or kMaxSegments, by the shape of
// the weight alone. Few rows then give work to every SM, and a cluster can hold a block for each part.
constexpr int tile_segments(std::int64_t inputs) {
  constexpr std::int64_t kSegmentInputs = 1024;
  int segments = 1;
  while (segments < kMaxSegments && inputs > segments * kSegmentInputs) segments *= 2;
  return segments;
}

// The same for products of codes. Up to 8191 inputs the parts are those of other weights, with which they share
// launches; beyond they are longer: the kernel for most tokens (fp8 192) brings totals back once for each.
constexpr int tile_segments(TileKind kind, std::int64_t inputs) {
  constexpr std::int64_t kManyInputs = 8192;
  const int segments = tile_segments(inputs);
  return kind == TileKind::kFp8Products && inputs >= kManyInputs ? segments / 2 : segments;
}

struct LinearProblem {
  const std::byte* codes = nullptr;  // [row_tiles][stages][stage_tile_bytes], see packed_linear.h
  const float* scales = nullptr;     // [row_tiles][K / 128]; null for kBf16
  void* y = nullptr;                 // [T, N] of bf16 or float
  std::int64_t y_stride = 0;
  std::int32_t row_tiles = 0;     // N / 64
  std::int32_t row_groups = 0;    // groups of row tiles, those of one item each
  std::int32_t item_tiles = 0;    // row tiles of an item, of the last one maybe fewer
  std::int32_t scale_blocks = 0;  // K / 128
  std::int16_t input = 0;         // index into LinearParams::inputs or rows
  std::int16_t input_block = 0;   // kFp8Products: where its inputs begin among those encoded, in blocks of 128
  TileKind kind = TileKind::kBf16;
  bool float_output = false;
  bool wide_stores = false;   // y and its rows are 16-byte aligned
  bool boxed_output = false;  // kTile: LinearParams::outputs has a map of y, at the problem's number
};

// The first item of each problem, side by side: a block that begins finds its problem by one line of parameters.
struct FirstItems {
  std::int32_t of[kMaxProblems];

  // None: every item comes before those of problems that do not exist.
  constexpr FirstItems() {
    for (std::int32_t& first : of) first = std::numeric_limits<std::int32_t>::max();
  }
};

// What a problem multiplies with, for kernels that read it without a tensor map.
struct InputRows {
  const bf16* x = nullptr;  // [T, K], rows x_stride apart; 16-byte aligned, as its rows are
  std::int64_t x_stride = 0;
  bool rounds = false;  // x is rounded to E4M3 times a power of two, in blocks of 128
};

// RMS norm of the whole rows of x in front of the products, as rms_norm() computes it.
struct InputNorm {
  const bf16* weight = nullptr;  // [K]; null: no norm
  float eps = 0;
};

struct LinearParams {
  CUtensorMap inputs[kMaxProblems];       // [T][K]; boxes of 128 bytes x an item's tokens, 128-byte swizzle
  CUtensorMap outputs[kMaxBoxedOutputs];  // y as BF16; boxes of 64 outputs x an item's tokens, 128-byte swizzle
  InputRows rows[kMaxProblems];           // instead of `inputs` where the blocks bring inputs themselves
  InputNorm norm;                         // RMS norm of `rows` before the products
  const float* input_scales = nullptr;    // kFp8Products: EncodedRows::scales
  std::int32_t input_scale_stride = 0;
  LinearProblem problems[kMaxProblems];
  FirstItems first_item;
  std::int32_t tokens = 0;  // T
  std::int32_t token_tiles = 0;
  std::int32_t problem_count = 0;
  std::int32_t items = 0;
  std::int32_t item_tokens = 0;   // tokens of an item, as many as it has room for or fewer
  std::int32_t segments = 1;      // segments of every problem
  std::int32_t stages = 0;        // kTile: stages of the ring
  std::int32_t stage_bytes = 0;   // kTile: weights and inputs of a stage, a multiple of 1024
  std::int32_t input_offset = 0;  // kTile: offset of the inputs in a stage, behind the weights
  std::int32_t ring_bytes = 0;    // kGemv: of a block; kSplitK: of a segment
  std::int32_t sum_bytes = 0;     // kTile: for each row tile of a block: staged output, sums from another block
};
static_assert(sizeof(LinearParams) <= 4096, "kernel parameters that every driver takes");

}  // namespace dsv4rt::cuda
