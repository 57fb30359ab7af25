// The Hopper kernels of attention to many rows, none of them selected.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/attend/plan.h"

namespace dsv4rt::cuda {

struct DensePass;    // dense_plan.cuh
struct DecodedRows;  // decoded_rows.cuh

// The splits of pass.tokens tokens, and their outputs. Tokens of other kernels are left alone. Precondition: the device
// has code for sm_90a.
Status launch_dense_splits(const CudaDevice& device, const AttendParams& params, const DensePass& pass,
                           cudaStream_t stream);
// The same with rows that lie decoded.
Status launch_decoded_dense_splits(const CudaDevice& device, const AttendParams& params, const DensePass& pass,
                                   const DecodedRows& rows, cudaStream_t stream);
Status launch_dense_outputs(const AttendParams& params, const DensePass& pass, cudaStream_t stream);

}  // namespace dsv4rt::cuda
