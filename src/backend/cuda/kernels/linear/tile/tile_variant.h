// The compiled variants of the tile kernel, as the host sees them.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/shared/linear_params.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// Blocks of a cluster: a divisor of the segments. In order of preference between equals.
inline constexpr int kTileClusters[] = {4, 2, 1};
inline constexpr int kTileClusterCount = sizeof(kTileClusters) / sizeof(kTileClusters[0]);

// What the device runs of a variant, one block an SM.
struct TileResidency {
  int shared_bytes = 0;                  // of a block
  int clusters[kTileClusterCount] = {};  // at once; 0 where none fits
};

struct TileVariant {
  int tokens;       // of an item
  int row_tiles;    // of a block
  int input_bytes;  // of a stage
  int other_bytes;  // of a block, besides stages and sums
  int (*sum_bytes)(int segments, int cluster_blocks);
  // Asked of the driver once; the same on every device of a process.
  const Result<TileResidency>& (*residency)();
  Status (*launch)(const LinearParams& params, int clusters, int cluster_blocks, int shared_bytes, cudaStream_t stream);
};

// Instantiated for 128 tokens, 1 and 2 row tiles: tile_<tokens>x<row tiles>.cu.
template <int kTokens, int kRowTiles>
const TileVariant& tile_variant();

}  // namespace dsv4rt::cuda
