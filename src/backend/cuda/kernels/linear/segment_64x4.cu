#include "backend/cuda/kernels/linear/segment_instantiate.cuh"

namespace dsv4rt::cuda {

DSV4RT_LINEAR_SEGMENT_VARIANT(64, 4);

}  // namespace dsv4rt::cuda
