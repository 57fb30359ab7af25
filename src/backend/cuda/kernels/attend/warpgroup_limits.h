// What the Hopper kernel of attention takes, as the host needs to know it.
#pragma once

namespace dsv4rt::cuda {

inline constexpr int kTileHeads = 64;   // rows of every product
inline constexpr int kStepRows = 32;    // shares are multiples of it; p is summed per step
inline constexpr int kShareRows = 640;  // of a token in one block: their scores stay in registers
inline constexpr int kMostClusterBlocks = 8;
inline constexpr int kWarpgroupRows = kMostClusterBlocks * kShareRows;  // of a token; more: kernel.cuh
inline constexpr int kPlacedWindow = 128;                               // rows whose places are looked up once,
inline constexpr int kPlacedRows = 1152;                                // of the window and compressed ones

}  // namespace dsv4rt::cuda
