// Sizes of the kernel that multiplies E4M3 by E4M3 at many tokens. Terms: linear_params.h. It takes PrefillParams.
#pragma once

#include <array>

#include "backend/cuda/kernels/linear/prefill/prefill_params.h"

namespace dsv4rt::cuda {

inline constexpr int kFp8RowTiles = 2;                       // row tiles of an item
inline constexpr int kFp8Outputs = kFp8RowTiles * kRowTile;  // its outputs, the columns of the matrix instruction
inline constexpr int kFp8WeightBytes = kFp8Outputs * kStageBytesOfInput;
inline constexpr int kFp8BoxTokens = 64;                      // rows of a box of y
inline constexpr int kFp8SumBytes = 64 * kFp8Outputs * 4;     // a warpgroup's sums in FP32
inline constexpr int kFp8OutputBytes = 64 * kFp8Outputs * 2;  // its outputs in BF16

// kGroups: consumer warpgroups, each with 64 tokens of an item.
template <int kGroups>
struct Fp8Shape {
  static constexpr int kTokens = kGroups * 64;
  static constexpr int kValues = kFp8Outputs / 2;  // accumulators of a thread
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  // What the threads of consumers and of the producer's warpgroup have: together as many as all were launched with.
  static constexpr int kRegisters = kGroups == 2 ? 232 : 160;
  static constexpr int kProducerRegisters = kGroups == 2 ? 40 : 32;
  static constexpr int kInputBytes = kTokens * kStageBytesOfInput;
  static constexpr int kStageBytes = kInputBytes + kFp8WeightBytes;
  static constexpr int kScaleBytes = kTokens * 4;  // of a stage's inputs
  static constexpr int kBarrierBytes = 2 * kMaxStages * 8;
  static constexpr int kAlignmentBytes = 1024;
};

// Shared memory of a block besides the ring. Totals over segments wait there, and outputs on their way.
constexpr int fp8_other_bytes(int groups, int segments) {
  return groups * (segments > 1 ? kFp8SumBytes : kFp8OutputBytes) + Fp8Shape<1>::kBarrierBytes +
         Fp8Shape<1>::kAlignmentBytes;
}

// A compiled variant as the host sees it.
struct Fp8Variant {
  int groups;
  int tokens;       // tokens of an item
  int stage_bytes;  // weights, inputs and their scales
  int threads;
};

template <int kGroups>
constexpr Fp8Variant fp8_variant() {
  using Shape = Fp8Shape<kGroups>;
  return {.groups = kGroups,
          .tokens = Shape::kTokens,
          .stage_bytes = Shape::kStageBytes + Shape::kScaleBytes,
          .threads = Shape::kThreads};
}

// Numbered as LinearVariant does.
inline constexpr std::array kFp8Variants = {fp8_variant<2>(), fp8_variant<3>()};

}  // namespace dsv4rt::cuda
