// The compiled variants of the tile kernel, as the host sees them.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/tile_params.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

struct TileVariant {
  int tokens;       // of an item
  int row_tiles;    // of a block
  int input_bytes;  // of a stage
  // Chooses grid, cluster and ring, and launches; everything else of the parameters is set.
  Status (*launch)(TileParams& params, cudaStream_t stream);
};

// tokens: 8, 16, 32, 64, 128.
template <int kTokens>
const TileVariant& tile_variant();

}  // namespace dsv4rt::cuda
