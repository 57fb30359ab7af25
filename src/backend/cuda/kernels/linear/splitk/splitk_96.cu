#include "backend/cuda/kernels/linear/splitk/splitk_instantiate.cuh"

namespace dsv4rt::cuda {

template Status launch_splitk_as<96, 1, 1>(const CudaDevice&, const LinearParams&, const LinearPlan&, cudaStream_t);
template Status launch_splitk_as<96, 4, 1>(const CudaDevice&, const LinearParams&, const LinearPlan&, cudaStream_t);
template Status launch_splitk_as<96, 1, 2>(const CudaDevice&, const LinearParams&, const LinearPlan&, cudaStream_t);

}  // namespace dsv4rt::cuda
