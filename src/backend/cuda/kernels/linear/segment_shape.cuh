// Sizes of the segment kernel that host and device agree on.
#pragma once

#include "backend/cuda/kernels/linear/tile_params.h"
#include "backend/cuda/kernels/linear/tile_shape.cuh"

namespace dsv4rt::cuda {

template <int kTokens>
struct SegmentShape {
  static constexpr int kValues = kTokens / 2;  // accumulators of a thread
  // Keeping the ring full is the work of a warp of its own; many accumulators leave it no registers.
  static constexpr bool kLoaderWarp = kTokens <= 32;
  static constexpr int kThreads = kWarpgroup + (kLoaderWarp ? 32 : 0);
  // Five give the units of a layer's linears (640 at most) and clusters of eight place at once on 132 SMs: a second
  // wave costs more than anything saved inside a block.
  static constexpr int kBlocksPerSm = 5;
  // Inputs whose weights are widened together: a quarter as many registers, twice.
  static constexpr int kWideInputs = kTokens >= 32 ? 32 : 64;
  static constexpr int kBoxBytes = kTokens * kStageBytesOfInput;  // of a stage's inputs
  // Sums lie [token][64 outputs] where the ring was; the padding spreads a warp's stores over the banks.
  static constexpr int kSumRowBytes = kRowTile * 4 + 16;
  static constexpr int kSumBytes = kTokens * kSumRowBytes;
  static constexpr int kBarrierBytes = 512;
  static constexpr int kAlignmentBytes = 1024;
};

}  // namespace dsv4rt::cuda
