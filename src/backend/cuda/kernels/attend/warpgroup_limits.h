// What the Hopper kernels of attention take, clusters of blocks and blocks alone, as the host needs to know it.
#pragma once

namespace dsv4rt::cuda {

inline constexpr int kTileHeads = 64;  // rows of every product
inline constexpr int kStepRows = 32;   // splits are multiples of it; p is summed per step
inline constexpr int kMostClusterBlocks = 8;
inline constexpr int kMappedWindow = 128;  // window rows whose slots are looked up once
inline constexpr int kMappedRows = 1152;   // compressed rows whose slots are looked up once

}  // namespace dsv4rt::cuda
