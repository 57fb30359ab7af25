// Launches of the narrow kernel.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>

#include "backend/cuda/kernels/linear/packed_linear.h"
#include "backend/cuda/kernels/linear/tile_params.h"
#include "backend/ops.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

struct NarrowPlan {
  int shared_bytes = 0;  // of a block; 0: the inputs do not fit
  int ring_bytes = 0;    // see TileParams
};

// Calls over tile-packed weights of equally many segments. Precondition: 1 .. kNarrowTokens tokens. normed: behind
// an RMS norm of whole rows.
Result<NarrowPlan> plan_narrow(std::span<const LinearCall* const> calls, std::int32_t tokens, bool normed);

// p.items clusters of p.segments blocks.
Status launch_narrow(const TileParams& p, const NarrowPlan& plan, cudaStream_t stream);

}  // namespace dsv4rt::cuda
