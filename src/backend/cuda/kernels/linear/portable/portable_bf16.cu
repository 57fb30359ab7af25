#include "backend/cuda/kernels/linear/portable/portable_instantiate.cuh"

namespace dsv4rt::cuda {

Status launch_linear_bf16(const LinearKernelParams& p, OutputType output, cudaStream_t stream) {
  return launch_linear<WeightEncoding::kBf16>(p, output, stream);
}

}  // namespace dsv4rt::cuda
