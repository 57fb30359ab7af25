// CUDA failures as Status: the call, where it stands, and what the driver says.
#pragma once

#include <cuda_runtime_api.h>

#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// kFaulted for what leaves the context or the device unusable, and for errors that nobody has described; an engine
// latches it. After all others the device works on: kResourceExhausted for an allocation that does not fit,
// kFailedPrecondition for what a capture does not allow, kInvalidArgument for pointers and handles that a caller gave,
// kUnsupported where the machine and the build do not go together, kInternal for calls that should not have been made.
StatusCode cuda_error_code(cudaError_t error) noexcept;

// Returns a status of that code. Errors that do not fault are taken from the thread's last error, which the next launch
// would report again. `call` is the source text of the failed call.
Status cuda_failure(cudaError_t error, const char* call, const char* file, int line);

// Whether a query of an event or a stream has found it under way, which is taken from the thread's last error too.
bool under_way(cudaError_t query) noexcept;

// Ok, or cuda_failure.
inline Status cuda_status(cudaError_t error, const char* call, const char* file, int line) {
  return error == cudaSuccess ? Status{} : cuda_failure(error, call, file, line);
}

}  // namespace dsv4rt::cuda

// The Status of a CUDA runtime call.
#define DSV4RT_CUDA_STATUS(call) ::dsv4rt::cuda::cuda_status((call), #call, __FILE__, __LINE__)

// Returns from the enclosing function, which returns Status or Result, when the call fails.
#define DSV4RT_CUDA_TRY(call)                                                         \
  do {                                                                                \
    if (const cudaError_t cuda_try_error = (call); cuda_try_error != cudaSuccess) {   \
      return ::dsv4rt::cuda::cuda_failure(cuda_try_error, #call, __FILE__, __LINE__); \
    }                                                                                 \
  } while (false)
