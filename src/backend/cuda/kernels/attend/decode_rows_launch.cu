#include "backend/cuda/kernels/attend/decode_rows_kernel.cuh"
#include "backend/cuda/kernels/attend/decode_rows_launch.h"
#include "backend/cuda/kernels/common/launch_pdl.h"

namespace dsv4rt::cuda {

Status launch_decode_rows(const CudaDevice& device, const AttendParams& params, const DecodedRows& to,
                          cudaStream_t stream) {
  constexpr int kBlocksOfSm = 8;
  return launch_pdl(
      attend_decode_rows_kernel,
      {.grid = dim3(static_cast<unsigned>(device.multiprocessors() * kBlocksOfSm)), .threads = kDecodeRowsThreads},
      stream, params, to);
}

}  // namespace dsv4rt::cuda
