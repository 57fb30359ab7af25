#include "backend/cuda/device/cuda_error.h"

#include <string>

namespace dsv4rt::cuda {

Status cuda_failure(cudaError_t error, const char* call, const char* file, int line) {
  const StatusCode code =
      error == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted : StatusCode::kFaulted;
  return {code, std::string(call) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ") at " +
                    file + ":" + std::to_string(line)};
}

}  // namespace dsv4rt::cuda
