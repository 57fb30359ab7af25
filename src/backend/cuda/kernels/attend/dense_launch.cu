#include "backend/cuda/kernels/attend/dense_combine.cuh"
#include "backend/cuda/kernels/attend/dense_launch.h"
#include "backend/cuda/kernels/common/launch_pdl.h"

namespace dsv4rt::cuda {

Status launch_dense_splits(const CudaDevice& device, const AttendParams& p, const DenseRunsPass& pass,
                           const DecodedRows* decoded, cudaStream_t stream) {
  if (decoded != nullptr) return launch_decoded_runs(device, p, pass, *decoded, stream);
  return pass.run > 1 ? launch_packed_runs(device, p, pass, stream) : launch_packed_splits(device, p, pass, stream);
}

Status launch_dense_outputs(const AttendParams& p, const DenseRunsPass& pass, cudaStream_t stream) {
  return launch_pdl(
      pass.run > 1 ? attend_dense_combine_kernel<true> : attend_dense_combine_kernel<false>,
      {.grid = dim3(static_cast<unsigned>(kCombineBlocks * pass.groups), static_cast<unsigned>(pass.tokens)),
       .threads = kCombineThreads},
      stream, p, static_cast<const DensePass&>(pass));
}

}  // namespace dsv4rt::cuda
