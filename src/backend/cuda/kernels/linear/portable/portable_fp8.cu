#include "backend/cuda/kernels/linear/portable/portable_instantiate.cuh"

namespace dsv4rt::cuda {

Status launch_linear_fp8(const LinearKernelParams& p, OutputType output, cudaStream_t stream) {
  return launch_linear<WeightEncoding::kFp8Block128>(p, output, stream);
}

}  // namespace dsv4rt::cuda
