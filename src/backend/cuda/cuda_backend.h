// The CUDA backend: device memory, one stream, the operations of a layer as kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "backend/backend.h"
#include "dsv4rt/linear_precision.h"

namespace dsv4rt {

struct CudaBackendOptions {
  int device = 0;  // CUDA ordinal
  // cudaStream_t that all work is enqueued on; it outlives the backend. Null: a stream of its own.
  void* stream = nullptr;
  LinearPrecision linear_precision = LinearPrecision::kExact;
  // Told of every reason for which an operation runs on slow kernels, once: at the backend's creation or by the thread
  // that calls the operation. May be empty.
  std::function<void(std::string_view)> on_warning = {};
};

// Errors: kUnsupported without a usable driver or device, for a compute capability that the build holds
// no code for, or without cuBLASLt where it is needed; kInvalidArgument for an ordinal that does not exist (says how
// many do); kResourceExhausted.
Result<std::unique_ptr<Backend>> create_cuda_backend(const CudaBackendOptions& options);

// What such a backend takes of scratch memory (Backend::scratch_bytes) but with LinearPrecision::kNvfp4; asks no
// device.
std::int64_t cuda_scratch_bytes(const StepShapes& shapes);

}  // namespace dsv4rt
