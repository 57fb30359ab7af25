// The launch of attend_block_kernel, for every kind of pass.
#pragma once

#include <algorithm>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/attend/block_kernel.cuh"
#include "backend/cuda/kernels/attend/query_map.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "base/try.h"

namespace dsv4rt::cuda {

// Precondition: the device has code for sm_90a.
template <class Pass>
Status launch_block_pass(const CudaDevice& device, const AttendParams& params, const Pass& pass, unsigned blocks,
                         cudaStream_t stream) {
  const auto kernel = attend_block_kernel<Pass>;
  DSV4RT_RETURN_IF_ERROR(device.prepare(kernel, sizeof(BlockShared)));
  CUtensorMap queries;
  DSV4RT_RETURN_IF_ERROR(encode_query_map(params, queries));
  CUtensorMap outputs;
  DSV4RT_RETURN_IF_ERROR(encode_output_map(params, outputs));
  return launch_pdl(kernel, {.grid = dim3(blocks), .threads = kBlockThreads, .shared_bytes = sizeof(BlockShared)},
                    stream, params, queries, outputs, pass);
}

// Of splits: `pass` is `splits` itself, or that with decoded rows. A block for every part that has sums of its own, as
// far as they go.
template <class Pass>
Status launch_split_pass(const CudaDevice& device, const AttendParams& params, const DensePass& splits,
                         const Pass& pass, cudaStream_t stream) {
  const int blocks = std::min(splits.items(), device.multiprocessors());
  return launch_block_pass(device, params, pass, static_cast<unsigned>(blocks), stream);
}

}  // namespace dsv4rt::cuda
