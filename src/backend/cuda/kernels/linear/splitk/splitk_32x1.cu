#include "backend/cuda/kernels/linear/splitk/splitk_instantiate.cuh"

namespace dsv4rt::cuda {

template const SplitKVariant& splitk_variant<32, 1, 1>();

}  // namespace dsv4rt::cuda
