// The Hopper kernels of attention to many rows, none of them selected.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/attend/plan.h"

namespace dsv4rt::cuda {

struct DensePass;      // dense_plan.cuh
struct DenseRunsPass;  // the same
struct DecodedRows;    // decoded_rows.cuh

// The splits of pass.tokens tokens, in runs of pass.run, or one by one where that is one. decoded: null, or the step's
// rows. Tokens of other kernels are left alone. Precondition: the device has code for sm_90a.
Status launch_dense_splits(const CudaDevice& device, const AttendParams& params, const DenseRunsPass& pass,
                           const DecodedRows* decoded, cudaStream_t stream);
// Their outputs.
Status launch_dense_outputs(const AttendParams& params, const DenseRunsPass& pass, cudaStream_t stream);

// Kernels of launch_dense_splits(), each of a file of its own.
Status launch_packed_splits(const CudaDevice& device, const AttendParams& params, const DensePass& pass,
                            cudaStream_t stream);
Status launch_packed_runs(const CudaDevice& device, const AttendParams& params, const DenseRunsPass& pass,
                          cudaStream_t stream);
Status launch_decoded_runs(const CudaDevice& device, const AttendParams& params, const DenseRunsPass& pass,
                           const DecodedRows& rows, cudaStream_t stream);

}  // namespace dsv4rt::cuda
