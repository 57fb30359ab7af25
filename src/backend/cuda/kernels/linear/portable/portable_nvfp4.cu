#include "backend/cuda/kernels/linear/portable/portable_instantiate.cuh"

namespace dsv4rt::cuda {

Status launch_portable_nvfp4(const PortableParams& p, OutputType output, int item_tokens, cudaStream_t stream) {
  return launch_portable<WeightEncoding::kNvfp4>(p, output, item_tokens, stream);
}

}  // namespace dsv4rt::cuda
