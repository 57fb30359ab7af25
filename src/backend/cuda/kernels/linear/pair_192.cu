#include "backend/cuda/kernels/linear/pair_instantiate.cuh"

namespace dsv4rt::cuda {

template const PairVariant& pair_variant<192>();

}  // namespace dsv4rt::cuda
