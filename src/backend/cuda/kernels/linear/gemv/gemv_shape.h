// Sizes of the gemv kernel that host and device agree on.
#pragma once

#include "backend/cuda/kernels/linear/shared/linear_params.h"

namespace dsv4rt::cuda {

inline constexpr int kGemvTokens = 8;        // most: the columns of its matrix instruction
inline constexpr int kGemvSlotBytes = 8192;  // 128 inputs of a row tile in E4M3, 64 in BF16
inline constexpr int kGemvLeastSlots = 3;    // slots of a ring, at least
// Slots of a ring that a block lets fill at a time: 256 inputs. The rings of all blocks asked for at once, 25 MB, would
// make what other kernels read meanwhile wait for microseconds, and their weights would come no sooner. No more than
// the ring has: the barrier of a slot tells its last two fillings apart, no earlier ones.
constexpr int gemv_slots_under_way(TileKind kind, int slots) {
  const int wanted = kind == TileKind::kBf16 ? 4 : 2;
  return wanted < slots ? wanted : slots;
}
// Five give the units of a layer's linears (640 at most) and clusters of eight place at once on 132 SMs: a second wave
// costs more than anything saved inside a block.
inline constexpr int kMostGemvBlocks = 5;  // most blocks that share an SM
inline constexpr int kGemvThreads = kWarpgroup + 32;

// Inputs lie as rows of 16-byte units. Three units to spare spread the same unit of eight tokens over the banks, and
// the two units that the chains of a norm's sum read of each of two rows.
constexpr int gemv_row_bytes(int scale_blocks) {
  return scale_blocks * kScaleBlockInputs * static_cast<int>(sizeof(bf16)) + 48;
}
constexpr int gemv_input_bytes(int scale_blocks, int tokens) {
  return scale_blocks == 0 ? 0 : tokens * gemv_row_bytes(scale_blocks);
}

// kFp8Products: codes of the segment's inputs, 128 of eight tokens after the other, and their scales.
inline constexpr int kGemvCodeBytes = kGemvTokens * kScaleBlockInputs;
constexpr int gemv_code_bytes(int scale_blocks) {
  return scale_blocks * (kGemvCodeBytes + kGemvTokens * static_cast<int>(sizeof(float)));
}

inline constexpr int kGemvReceivedBytes = kGemvTokens * kRowTile * 4;
inline constexpr int kGemvBarrierBytes = 512;
inline constexpr int kGemvOtherBytes = kGemvBarrierBytes + kGemvReceivedBytes + 1024;  // the last for alignment

}  // namespace dsv4rt::cuda
