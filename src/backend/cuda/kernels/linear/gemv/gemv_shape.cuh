// Sizes of the gemv kernel, and where things lie in a block's shared memory.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/mma_tile.cuh"
#include "backend/cuda/kernels/linear/shared/linear_items.cuh"

namespace dsv4rt::cuda {

inline constexpr int kGemvSlotBytes = 8192;  // 128 inputs of a row tile in E4M3, 64 in BF16
// Five give the units of a layer's linears (640 at most) and clusters of eight place at once on 132 SMs: a second wave
// costs more than anything saved inside a block.
inline constexpr int kMostGemvBlocks = 5;  // of an SM
inline constexpr int kGemvThreads = kWarpgroup + 32;

// Inputs lie as units of eight values of a token, [unit][token]; an odd number of tokens spreads stores over the banks.
constexpr int unit_tokens(int tokens) {
  return tokens | 1;
}
inline constexpr int kUnitsPerScale = kScaleBlockInputs / kUnitValues;
constexpr int gemv_input_bytes(int scale_blocks, int tokens) {
  return scale_blocks * kUnitsPerScale * unit_tokens(tokens) * kUnitBytes;
}

inline constexpr int kGemvReceivedBytes = kGemvTokens * kRowTile * 4;
inline constexpr int kGemvBarrierBytes = 512;
inline constexpr int kGemvOtherBytes = kGemvBarrierBytes + kGemvReceivedBytes + 1024;  // the last for alignment

// One segment of one row tile; and shared-memory addresses.
struct GemvUnit {
  const LinearProblem* q;
  int row_tile;
  int first_block;  // of 128 inputs
  int blocks;
  int slots;                    // of the ring
  std::uint32_t ring;           // [slots][kGemvSlotBytes]
  std::uint32_t full;           // [slots] barriers
  std::uint32_t empty;          // [slots]
  std::uint32_t received;       // [segment][own outputs][kGemvTokens] sums that the cluster's blocks send
  std::uint32_t received_full;  // its barrier
  std::uint32_t norms;          // [kGemvTokens] scales of an RMS norm
  std::uint32_t inputs;         // the segment's units

  __device__ __forceinline__ std::uint32_t slot(int i) const { return ring + i * kGemvSlotBytes; }
  __device__ __forceinline__ int stages() const { return blocks * (q->kind == TileKind::kFp8 ? 1 : 2); }
};

}  // namespace dsv4rt::cuda
