#include "backend/cuda/kernels/linear/segment_instantiate.cuh"

namespace dsv4rt::cuda {

template const SegmentVariant& segment_variant<96, 1, 2>();

}  // namespace dsv4rt::cuda
