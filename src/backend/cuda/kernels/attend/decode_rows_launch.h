// The launch of the kernel that makes a decoded_rows.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/device/cuda_device.h"
#include "backend/ops.h"

namespace dsv4rt::cuda {

struct DecodedRows;

// Precondition: rows of the fp8_ds_mla format, in blocks of a power of two; to.rows has room for to.shape.
Status launch_decode_rows(const CudaDevice& device, const AttendParams& params, const DecodedRows& to,
                          cudaStream_t stream);

}  // namespace dsv4rt::cuda
