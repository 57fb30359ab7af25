// What the Hopper kernel of attention takes, as the host needs to know it.
#pragma once

namespace dsv4rt::cuda {

inline constexpr int kTileHeads = 64;   // rows of every product
inline constexpr int kStepRows = 32;    // splits are multiples of it; p is summed per step
inline constexpr int kSplitRows = 640;  // of a token in one block: their scores stay in registers
inline constexpr int kMostClusterBlocks = 8;
inline constexpr int kMappedWindow = 128;  // rows whose slots are looked up once,
inline constexpr int kMappedRows = 1152;   // of the window and compressed ones

}  // namespace dsv4rt::cuda
