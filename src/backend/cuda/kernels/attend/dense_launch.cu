#include <algorithm>
#include <cstddef>

#include "backend/cuda/kernels/attend/block_kernel.cuh"
#include "backend/cuda/kernels/attend/dense_combine.cuh"
#include "backend/cuda/kernels/attend/dense_launch.h"
#include "backend/cuda/kernels/attend/query_map.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Status launch_dense_splits(const CudaDevice& device, const AttendParams& p, const DensePass& pass,
                           cudaStream_t stream) {
  const auto kernel = attend_block_kernel<DensePass>;
  DSV4RT_RETURN_IF_ERROR(device.prepare(kernel, sizeof(BlockShared)));
  CUtensorMap queries;
  DSV4RT_RETURN_IF_ERROR(encode_query_map(p, queries));
  const int blocks = std::min(pass.items(), device.multiprocessors());
  return launch_pdl(
      kernel,
      {.grid = dim3(static_cast<unsigned>(blocks)), .threads = kBlockThreads, .shared_bytes = sizeof(BlockShared)},
      stream, p, queries, pass);
}

Status launch_dense_outputs(const AttendParams& p, const DensePass& pass, cudaStream_t stream) {
  return launch_pdl(
      attend_dense_combine_kernel,
      {.grid = dim3(static_cast<unsigned>(kCombineBlocks * pass.groups), static_cast<unsigned>(pass.tokens)),
       .threads = kCombineThreads},
      stream, p, pass);
}

}  // namespace dsv4rt::cuda
