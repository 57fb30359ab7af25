#include "backend/cuda/kernels/linear/segment_instantiate.cuh"

namespace dsv4rt::cuda {

template const SegmentVariant& segment_variant<128, 1, 4>();

}  // namespace dsv4rt::cuda
