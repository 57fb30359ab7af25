#include "backend/cuda/cuda_ops.h"

#include <utility>

#include "backend/cuda/kernels/linear/library_linear.h"

namespace dsv4rt::cuda {

CudaOps::CudaOps(cudaStream_t stream, Scratch& scratch) : CudaOps(stream, scratch, nullptr) {}
CudaOps::CudaOps(cudaStream_t stream, Scratch& scratch, std::unique_ptr<LibraryLinear> library)
    : stream_(stream), scratch_(scratch), library_(std::move(library)) {}
CudaOps::~CudaOps() = default;

}  // namespace dsv4rt::cuda
