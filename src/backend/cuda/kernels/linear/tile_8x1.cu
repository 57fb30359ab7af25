#include "backend/cuda/kernels/linear/tile_instantiate.cuh"

namespace dsv4rt::cuda {

DSV4RT_LINEAR_TILE_VARIANT(8, 1);

}  // namespace dsv4rt::cuda
