// Launches of the gemv kernel.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>

#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "backend/cuda/kernels/linear/shared/linear_params.h"
#include "backend/ops.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

struct GemvPlan {
  int shared_bytes = 0;  // of a block; 0: the inputs do not fit
  int ring_bytes = 0;    // see LinearParams
};

// Calls over tile-packed weights of equally many segments. Precondition: 1 .. kGemvTokens tokens. normed: behind
// an RMS norm of whole rows.
Result<GemvPlan> plan_gemv(std::span<const LinearCall* const> calls, std::int32_t tokens, bool normed);

// p.items clusters of p.segments blocks.
Status launch_gemv(const LinearParams& p, const GemvPlan& plan, cudaStream_t stream);

}  // namespace dsv4rt::cuda
