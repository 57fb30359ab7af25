#include "backend/cuda/device/cuda_error.h"

#include <string>

namespace dsv4rt::cuda {

Status cuda_failure(cudaError_t error, const char* call, const char* file, int line) {
  StatusCode code = StatusCode::kFaulted;
  if (error == cudaErrorMemoryAllocation) code = StatusCode::kResourceExhausted;
  // Misuse of a capture leaves the device as it was.
  if (error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread) {
    code = StatusCode::kFailedPrecondition;
  }
  return {code, std::string(call) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ") at " + file +
                    ":" + std::to_string(line)};
}

}  // namespace dsv4rt::cuda
