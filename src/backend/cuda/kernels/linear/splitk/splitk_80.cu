#include "backend/cuda/kernels/linear/splitk/splitk_instantiate.cuh"

namespace dsv4rt::cuda {

template Status launch_splitk_as<80, 1, 1>(const CudaDevice&, const LinearParams&, const LinearPlan&, cudaStream_t);
template Status launch_splitk_as<80, 4, 1>(const CudaDevice&, const LinearParams&, const LinearPlan&, cudaStream_t);
template Status launch_splitk_as<80, 2, 1>(const CudaDevice&, const LinearParams&, const LinearPlan&, cudaStream_t);

}  // namespace dsv4rt::cuda
