#include "backend/cuda/cuda_ops.h"

#include <utility>

#include "backend/cuda/kernels/linear/cublaslt/cublaslt_linear.h"

namespace dsv4rt::cuda {

CudaOps::CudaOps(const CudaDevice& device, cudaStream_t stream, Scratch& scratch,
                 std::function<void(std::string_view)> warn)
    : CudaOps(device, stream, scratch, nullptr, std::move(warn)) {}
CudaOps::CudaOps(const CudaDevice& device, cudaStream_t stream, Scratch& scratch,
                 std::unique_ptr<CublasLtLinear> library, std::function<void(std::string_view)> warn)
    : device_(device), stream_(stream), scratch_(scratch), library_(std::move(library)), slow_paths_(std::move(warn)) {
  slow_paths_.tell(device_.has_sm90a() ? SlowPath::kNone : slow_path_without_sm90a(device_.facts()));
}
CudaOps::~CudaOps() = default;

}  // namespace dsv4rt::cuda
