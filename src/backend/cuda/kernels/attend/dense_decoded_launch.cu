#include <algorithm>

#include "backend/cuda/kernels/attend/block_pass_launch.cuh"
#include "backend/cuda/kernels/attend/decoded_rows.cuh"
#include "backend/cuda/kernels/attend/dense_launch.h"
#include "backend/cuda/kernels/attend/dense_plan.cuh"

namespace dsv4rt::cuda {

Status launch_decoded_dense_splits(const CudaDevice& device, const AttendParams& p, const DensePass& pass,
                                   const DecodedRows& rows, cudaStream_t stream) {
  const int blocks = std::min(pass.units(), device.multiprocessors());
  return launch_block_pass(device, p, Decoded<DensePass>{pass, rows}, static_cast<unsigned>(blocks), stream);
}

}  // namespace dsv4rt::cuda
