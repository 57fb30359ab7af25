// An RMS norm in front of linears that round their input.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/ops.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// y as round_input() makes it of what rms_norm() gives. Precondition: 1 token and more, a width that is a multiple of
// 128 and that rms_norm() takes, 16-byte aligned arrays.
Status rounded_rms_norm(const RmsNormParams& params, cudaStream_t stream);
// The same as encode_input() makes it. y is unused.
Status encoded_rms_norm(const RmsNormParams& params, const EncodedRows& rows, cudaStream_t stream);
// Whether both take them.
bool rounds_behind_norm(const RmsNormParams& params);

}  // namespace dsv4rt::cuda
