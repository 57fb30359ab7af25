#include "backend/cuda/kernels/linear/segment_instantiate.cuh"

namespace dsv4rt::cuda {

template const SegmentVariant& segment_variant<16, 1, 1>();

}  // namespace dsv4rt::cuda
