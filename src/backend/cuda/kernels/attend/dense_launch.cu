#include <algorithm>
#include <cstddef>

#include "backend/cuda/kernels/attend/dense_combine.cuh"
#include "backend/cuda/kernels/attend/dense_kernel.cuh"
#include "backend/cuda/kernels/attend/dense_launch.h"
#include "backend/cuda/kernels/attend/query_map.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Status launch_dense_splits(const CudaDevice& device, const AttendParams& p, const DensePass& pass,
                           cudaStream_t stream) {
  constexpr std::size_t kSharedBytes = sizeof(DenseShared);
  DSV4RT_RETURN_IF_ERROR(device.prepare(attend_dense_kernel, kSharedBytes));
  CUtensorMap queries;
  DSV4RT_RETURN_IF_ERROR(encode_query_map(p, queries));
  const int blocks = std::min(pass.items(), device.multiprocessors());
  return launch_pdl(
      attend_dense_kernel,
      {.grid = dim3(static_cast<unsigned>(blocks)), .threads = kDenseThreads, .shared_bytes = kSharedBytes}, stream, p,
      queries, pass);
}

Status launch_dense_outputs(const AttendParams& p, const DensePass& pass, cudaStream_t stream) {
  return launch_pdl(
      attend_dense_combine_kernel,
      {.grid = dim3(static_cast<unsigned>(kCombineBlocks * pass.groups), static_cast<unsigned>(pass.tokens)),
       .threads = kCombineThreads},
      stream, p, pass);
}

}  // namespace dsv4rt::cuda
