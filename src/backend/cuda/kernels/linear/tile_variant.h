// The compiled variants of the tile kernel, as the host sees them.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/tile_params.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// How a variant may be launched.
struct TileGrid {
  int blocks_per_sm = 1;   // that the shared memory of a block allows
  int cluster_blocks = 1;  // a divisor of the segments
};

inline constexpr int kMaxBlocksPerSm = 3;
// In order of preference between equals: the hardware fills an SM before it takes the next one.
inline constexpr TileGrid kTileGrids[] = {{1, 4}, {1, 2}, {1, 1}, {2, 4}, {2, 2}, {2, 1}, {3, 4}, {3, 2}, {3, 1}};
inline constexpr int kTileGridCount = sizeof(kTileGrids) / sizeof(kTileGrids[0]);

// What the device runs of a variant.
struct TileResidency {
  int sms = 0;
  int shared_bytes[kMaxBlocksPerSm] = {};  // of a block, by blocks per SM
  int clusters[kTileGridCount] = {};       // at once; 0 where the grid does not fit
};

struct TileVariant {
  int tokens;       // of an item
  int row_tiles;    // of a block
  int input_bytes;  // of a stage
  int other_bytes;  // of a block, besides stages and sums
  int (*sum_bytes)(int segments, int cluster_blocks);
  // Asked of the driver once; the same on every device of a process.
  const Result<TileResidency>& (*residency)();
  Status (*launch)(const TileParams& params, int clusters, int cluster_blocks, int shared_bytes, cudaStream_t stream);
};

template <int kTokens, int kRowTiles>
const TileVariant& tile_variant();

}  // namespace dsv4rt::cuda
