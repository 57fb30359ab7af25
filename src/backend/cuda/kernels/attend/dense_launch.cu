#include <algorithm>
#include <cstddef>

#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/kernels/attend/dense_combine.cuh"
#include "backend/cuda/kernels/attend/dense_kernel.cuh"
#include "backend/cuda/kernels/attend/dense_launch.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Status launch_dense_splits(const CudaDevice& device, const AttendParams& p, const DensePass& pass,
                           cudaStream_t stream) {
  constexpr std::size_t kSharedBytes = sizeof(DenseShared);
  DSV4RT_RETURN_IF_ERROR(device.prepare(attend_dense_kernel, kSharedBytes));
  CUtensorMap queries;
  DSV4RT_RETURN_IF_ERROR(encode_row_map({.data = p.q,
                                         .value_bytes = 2,
                                         .columns = kHeadDim,
                                         .rows = std::int64_t{p.step.counts.tokens} * p.heads,
                                         .row_bytes = kHeadDim * 2,
                                         .box_columns = kAtomValues,
                                         .box_rows = kTileHeads},
                                        queries));
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
