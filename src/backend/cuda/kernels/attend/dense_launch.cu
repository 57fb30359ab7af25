#include <algorithm>

#include "backend/cuda/kernels/attend/block_pass_launch.cuh"
#include "backend/cuda/kernels/attend/dense_combine.cuh"
#include "backend/cuda/kernels/attend/dense_launch.h"
#include "backend/cuda/kernels/common/launch_pdl.h"

namespace dsv4rt::cuda {

Status launch_dense_splits(const CudaDevice& device, const AttendParams& p, const DensePass& pass,
                           cudaStream_t stream) {
  const int blocks = std::min(pass.units(), device.multiprocessors());
  return launch_block_pass(device, p, pass, static_cast<unsigned>(blocks), stream);
}

Status launch_dense_outputs(const AttendParams& p, const DensePass& pass, cudaStream_t stream) {
  return launch_pdl(
      pass.run > 1 ? attend_dense_combine_kernel<true> : attend_dense_combine_kernel<false>,
      {.grid = dim3(static_cast<unsigned>(kCombineBlocks * pass.groups), static_cast<unsigned>(pass.tokens)),
       .threads = kCombineThreads},
      stream, p, pass);
}

}  // namespace dsv4rt::cuda
