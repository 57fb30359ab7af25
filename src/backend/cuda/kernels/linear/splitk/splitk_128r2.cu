#include "backend/cuda/kernels/linear/splitk/splitk_instantiate.cuh"

namespace dsv4rt::cuda {

template const SplitKVariant& splitk_variant<128, 1, 2>();

}  // namespace dsv4rt::cuda
