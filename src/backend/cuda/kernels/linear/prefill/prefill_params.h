// What the prefill kernel takes, and its sizes; the kernel of E4M3 products takes the same struct. Terms:
// linear_params.h.
#pragma once

#include <array>

#include "backend/cuda/kernels/linear/shared/linear_params.h"

namespace dsv4rt::cuda {

inline constexpr int kMaxPrefillProblems = 8;

struct PrefillParams {
  CUtensorMap inputs[kMaxPrefillProblems];       // [T][K]; boxes of 128 bytes x kShareTokens rows (kFp8: an item's
                                                 // tokens), 128-byte swizzle
  CUtensorMap last_inputs[kMaxPrefillProblems];  // kFp8: the same in boxes of last_tokens rows
  CUtensorMap outputs[kMaxPrefillProblems];      // y where wide_stores, as BF16 or pairs of bytes of FP32: boxes of 128
                                                 // bytes x box_tokens rows
  // kFp8: of problems whose outputs leave as codes, EncodedRows::scales from the first output's on; otherwise null.
  // Their `outputs` are the codes, in boxes of 128.
  float* output_scales[kMaxPrefillProblems] = {};
  std::int32_t output_scale_stride = 0;
  LinearProblem problems[kMaxPrefillProblems];
  const float* input_scales = nullptr;  // kFp8Products: EncodedRows::scales
  std::int32_t input_scale_stride = 0;
  FirstItems first_item;
  std::int32_t tokens = 0;  // T
  std::int32_t token_tiles = 0;
  std::int32_t items = 0;
  std::int32_t last_tokens = 0;   // kFp8: tokens of the last items, as many as they have room for or fewer
  std::int32_t segments = 1;      // segments of every problem
  std::int32_t stages = 0;        // stages of the ring
  std::int32_t stage_bytes = 0;   // a multiple of 1024
  std::int32_t input_offset = 0;  // offset of the inputs in a stage, behind the weights
};
static_assert(sizeof(PrefillParams) <= 4096, "kernel parameters that every driver takes");

inline constexpr int kPrefillBlocks = 2;      // blocks of a cluster
inline constexpr int kPrefillBlockTiles = 2;  // row tiles of a block, a consumer warpgroup each
inline constexpr int kPrefillThreads = (kPrefillBlockTiles + 1) * kWarpgroup;  // the last group is the producer's
inline constexpr int kPrefillRowTiles = kPrefillBlocks * kPrefillBlockTiles;   // row tiles of an item

// Outputs leave through two buffers of a warpgroup, each of a quarter of the item's tokens as BF16 or an eighth as
// FP32.
constexpr int prefill_box_tokens(int item_tokens, bool float_output) {
  return item_tokens / (float_output ? 8 : 4);
}

// The shape of an item of kTokens tokens.
template <int kTokens>
struct PrefillShape {
  static constexpr int kValues = kTokens / 2;                    // accumulators of a thread
  static constexpr int kShareTokens = kTokens / kPrefillBlocks;  // tokens whose inputs a block fetches for both
  static constexpr int kInputBytes = kTokens * kStageBytesOfInput;
  static_assert(kShareTokens * kStageBytesOfInput % 1024 == 0, "whole groups of eight swizzled rows");

  static constexpr int kBufferBytes = kRowTile * prefill_box_tokens(kTokens, false) * 2;
  static constexpr int box_tokens(bool float_output) { return prefill_box_tokens(kTokens, float_output); }

  // Bytes of a block's shared memory besides the ring.
  static constexpr int kBarrierBytes = 2 * kMaxStages * 8;
  static constexpr int kAlignmentBytes = 1024;
  static constexpr int kOtherBytes = kPrefillBlockTiles * 2 * kBufferBytes + kBarrierBytes + kAlignmentBytes;
};

// A compiled variant as the host sees it.
struct PrefillVariant {
  int tokens;        // tokens of an item
  int share_tokens;  // tokens whose inputs a block fetches for both
  int input_bytes;   // inputs of a stage
  int other_bytes;   // shared memory of a block besides the ring
};

template <int kTokens>
constexpr PrefillVariant prefill_variant() {
  using Shape = PrefillShape<kTokens>;
  return {.tokens = kTokens,
          .share_tokens = Shape::kShareTokens,
          .input_bytes = Shape::kInputBytes,
          .other_bytes = Shape::kOtherBytes};
}

// Numbered as LinearVariant does.
inline constexpr std::array kPrefillVariants = {prefill_variant<128>(), prefill_variant<192>()};

}  // namespace dsv4rt::cuda
