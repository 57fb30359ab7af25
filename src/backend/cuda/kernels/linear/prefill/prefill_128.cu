#include "backend/cuda/kernels/linear/prefill/prefill_instantiate.cuh"

namespace dsv4rt::cuda {

template const PrefillVariant& prefill_variant<128>();

}  // namespace dsv4rt::cuda
