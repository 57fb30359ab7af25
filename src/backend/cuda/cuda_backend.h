// The CUDA backend: device memory, one stream, the operations of a layer as kernels.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace dsv4rt {

struct CudaBackendOptions {
  int device = 0;  // CUDA ordinal
  // cudaStream_t that all work is enqueued on; it outlives the backend. Null: a stream of its own.
  void* stream = nullptr;
};

// Errors: kUnsupported without a usable driver or device, or for a compute capability that the
// build holds no code for; kInvalidArgument for an ordinal that does not exist (says how many do);
// kResourceExhausted.
Result<std::unique_ptr<Backend>> create_cuda_backend(const CudaBackendOptions& options);

}  // namespace dsv4rt
