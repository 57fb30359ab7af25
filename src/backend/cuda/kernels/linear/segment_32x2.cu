#include "backend/cuda/kernels/linear/segment_instantiate.cuh"

namespace dsv4rt::cuda {

template const SegmentVariant& segment_variant<32, 2, 1>();

}  // namespace dsv4rt::cuda
