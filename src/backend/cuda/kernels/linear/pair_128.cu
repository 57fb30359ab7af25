#include "backend/cuda/kernels/linear/pair_instantiate.cuh"

namespace dsv4rt::cuda {

template const PairVariant& pair_variant<128>();

}  // namespace dsv4rt::cuda
