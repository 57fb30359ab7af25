// The Hopper kernel of attention: when it applies and how it is launched.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "backend/ops.h"

namespace dsv4rt::cuda {

// Whether the current device and the formats allow it. `most_rows` of a token may be more than it takes: it
// then leaves the tokens with more than warpgroup_rows() rows alone.
bool warpgroup_applies(const AttendParams& params);
std::int64_t warpgroup_rows();
Status launch_warpgroup(const AttendParams& params, std::int64_t most_rows, cudaStream_t stream);

}  // namespace dsv4rt::cuda
