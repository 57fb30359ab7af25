// Sizes of the split-K kernel that host and device agree on.
#pragma once

#include <array>

#include "backend/cuda/kernels/linear/shared/linear_params.h"

namespace dsv4rt::cuda {

template <int kTokens>
inline constexpr int kSplitKBoxBytes = kTokens* kStageBytesOfInput;  // inputs of a stage

// Scales of a stage's inputs; what follows them is aligned as swizzled stages are.
constexpr int splitk_scale_bytes(TileKind kind) {
  return kind == TileKind::kFp8Products ? 1024 : 0;
}

// Slots of the first ring that fill at a time, where a warp of its own keeps it full: 256 inputs. The rings of all
// blocks asked for at once, 25 MB, would make what other kernels read meanwhile wait for microseconds.
constexpr int splitk_slots_under_way(TileKind kind) {
  return 256 / stage_inputs(kind);
}

// kGroups: segments of a block, each with a loader and a ring. kRows: row tiles of a block, which share the inputs of
// its one segment. Each has a warpgroup that multiplies.
template <int kTokens, int kGroups, int kRows = 1>
struct SplitKShape {
  static constexpr int kValues = kTokens / 2;  // accumulators of a thread
  static_assert(kRows == 1 || kGroups == 1, "warpgroups are told apart by one of both");
  static constexpr int kConsumers = kGroups * kRows * kWarpgroup;
  static constexpr int kReaders = kRows * kWarpgroup;  // threads that read a ring
  // Keeping a ring full is the work of a warp of its own. With many accumulators five blocks of five warps do not fit
  // a multiprocessor, whose quarters have the registers of seven warps with 72 each; nor do four warpgroups of more
  // than 96 tokens beside warps that load.
  static constexpr bool kLoaderWarps = kTokens <= 96 && (kGroups > 1 || (kTokens <= 32 && kRows == 1));
  static constexpr int kThreads = kConsumers + (kLoaderWarps ? kGroups * 32 : 0);
  // Four or five segments give those of a layer's linears (640 at most) place at once on 132 SMs: a second wave costs
  // more than anything saved inside a block.
  static_assert(kGroups * kRows <= 4, "whole blocks");
  static constexpr int kBlocksPerSm = kGroups * kRows == 1 ? 5 : 4 / (kGroups * kRows);
  // kFp8Products need a second set of accumulators.
  static constexpr bool kTakesCodes = kTokens <= 64 || (kTokens == 96 && kRows == 2);
  // Inputs whose weights are widened together: a quarter as many registers, twice.
  static constexpr int kWideInputs = kTokens >= 32 ? 32 : 64;
  // Sums lie [token][64 outputs] where their ring was; the padding spreads a warp's stores over the banks.
  static constexpr int kSumRowBytes = kRowTile * 4 + 16;
  static constexpr int kSumBytes = kTokens * kSumRowBytes;
  static constexpr int kRingSumBytes = kRows * kSumBytes;
  static constexpr int kGroupBarrierBytes = (kLoaderWarps ? 3 : 2) * kMaxStages * 8;
  static constexpr int kBarrierBytes = kGroups * kGroupBarrierBytes;
};

// A compiled variant as the host sees it.
struct SplitKVariant {
  int tokens;     // tokens of an item
  int groups;     // segments of a block
  int row_tiles;  // row tiles of a block
  int threads;
  int blocks_per_sm;  // most blocks that share an SM
  int box_bytes;      // inputs of a stage
  int sum_bytes;      // sums of a segment; they take the place of its ring
  int other_bytes;    // shared memory of a block besides the rings
  bool takes_codes;   // runs kFp8Products too
};

template <int kTokens, int kGroups, int kRows = 1>
constexpr SplitKVariant splitk_variant() {
  using Shape = SplitKShape<kTokens, kGroups, kRows>;
  return {.tokens = kTokens,
          .groups = kGroups,
          .row_tiles = kRows,
          .threads = Shape::kThreads,
          .blocks_per_sm = Shape::kBlocksPerSm,
          .box_bytes = kSplitKBoxBytes<kTokens>,
          .sum_bytes = Shape::kRingSumBytes,
          .other_bytes = Shape::kBarrierBytes,
          .takes_codes = Shape::kTakesCodes};
}

// Numbered as LinearVariant does.
inline constexpr std::array kSplitKVariants = {
    splitk_variant<16, 4>(),     splitk_variant<16, 2>(), splitk_variant<16, 1>(),    splitk_variant<32, 4>(),
    splitk_variant<32, 2>(),     splitk_variant<32, 1>(), splitk_variant<64, 4>(),    splitk_variant<64, 2>(),
    splitk_variant<64, 1>(),     splitk_variant<80, 4>(), splitk_variant<80, 2>(),    splitk_variant<80, 1>(),
    splitk_variant<96, 4>(),     splitk_variant<96, 1>(), splitk_variant<96, 1, 2>(), splitk_variant<112, 4>(),
    splitk_variant<128, 1, 2>(),
};

}  // namespace dsv4rt::cuda
