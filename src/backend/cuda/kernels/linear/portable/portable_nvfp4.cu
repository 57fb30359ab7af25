#include "backend/cuda/kernels/linear/portable/portable_instantiate.cuh"

namespace dsv4rt::cuda {

Status launch_linear_nvfp4(const LinearKernelParams& p, OutputType output, cudaStream_t stream) {
  return launch_linear<WeightEncoding::kNvfp4>(p, output, stream);
}

}  // namespace dsv4rt::cuda
