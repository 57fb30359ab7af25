// What a linear kernel is given: plain data shared by translation units of different instruction
// sets. Nothing here may have a function body, because a shared inline function compiled for one
// instruction set could be linked into code that runs without it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv4rt::cpu {

inline constexpr int kGroupOutputs = 16;  // outputs computed side by side, one per vector lane
inline constexpr int kBlockDepth = 128;   // most inputs decoded at a time, and inputs per FP8 scale
inline constexpr int kNvfp4GroupInputs = 16;
// E8M0 scales of FP8 weights: 2^-64 .. 2^64. A weight times its scale is then exact in BF16.
inline constexpr int kMinFp8ScaleCode = 127 - 64;
inline constexpr int kMaxFp8ScaleCode = 127 + 64;
inline constexpr int kFp8ScaleCodes = kMaxFp8ScaleCode - kMinFp8ScaleCode + 1;

enum class PackedEncoding : std::uint8_t { kBf16, kFp8, kNvfp4 };

// A packed weight. Outputs come in groups of 16 (the last one padded with zeros), inputs are padded
// with zeros to `depth`. Codes of one group are contiguous; 16 lanes n, inputs k:
//   kBf16   [depth/2][16 n][2 k] BF16
//   kFp8    [depth/4][64] E4M3; byte 16 q + 8 h + 2 d + e of a line holds n = 4 q + d, k = 2 h + e, so that
//           interleaving the low and high halves of the decoded BF16 gives pairs in lane order
//   kNvfp4  [depth/8][16 n] u32, nibble j = input j, low nibble first
struct PackedView {
  PackedEncoding encoding = PackedEncoding::kBf16;
  const std::uint8_t* codes = nullptr;
  std::int64_t group_bytes = 0;  // bytes of codes in a group
  // kFp8: E8M0 [group][scale_columns]; kNvfp4: E4M3 without NaN [group][scale_columns][16 n]
  const std::uint8_t* scales = nullptr;
  std::int64_t scale_columns = 0;
  float global_scale = 1.0F;
  std::int64_t depth = 0;
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
};

// One worker's rectangle of one product: rows x groups, all inputs.
struct LinearBlock {
  PackedView weight;
  std::int64_t group_begin = 0;
  std::int64_t group_end = 0;
  const std::uint16_t* x = nullptr;  // BF16 [rows, in_features], rows x_stride values apart
  std::int64_t x_stride = 0;
  std::int64_t rows = 0;  // <= kMaxBlockRows
  void* y = nullptr;      // first row of the block; [rows, out_features], rows y_stride values apart
  std::int64_t y_stride = 0;
  bool y_is_float = false;
  const float* e4m3_values = nullptr;  // [256]
  const float* e2m1_values = nullptr;  // [16]
  // [kFp8ScaleCodes][2][128]: high, then low bytes of the BF16 value of the 128 non-negative E4M3 codes
  // times the scale 2^(kMinFp8ScaleCode + i - 127).
  const std::uint8_t* fp8_tables = nullptr;
  // Worker's own scratch, 64-byte aligned.
  float* inputs = nullptr;  // [kMaxBlockRows][kBlockDepth]
  float* panel = nullptr;   // [kPanelFloats]
  float* sums = nullptr;    // [kMaxBlockRows][kMaxBlockGroups * kGroupOutputs]
};

inline constexpr std::int64_t kMaxBlockRows = 256;
inline constexpr int kMaxBlockGroups = 24;
inline constexpr int kMaxPanelGroups = 8;
inline constexpr int kMaxDirectGroups = 4;
inline constexpr std::int64_t kPanelFloats = std::int64_t{kMaxPanelGroups} * kGroupOutputs * kBlockDepth;

using LinearBlockFunction = void (*)(const LinearBlock& block);

// The same function for every instruction set, with bit-identical results (see cpu_linear_kernel.h).
void linear_block_portable(const LinearBlock& block);
void linear_block_avx2(const LinearBlock& block);
void linear_block_avx512(const LinearBlock& block);

}  // namespace dsv4rt::cpu
