#include "backend/cuda/kernels/linear/tile/tile_instantiate.cuh"

namespace dsv4rt::cuda {

template const TileVariant& tile_variant<128, 1>();

}  // namespace dsv4rt::cuda
