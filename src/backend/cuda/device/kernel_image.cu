#include <cuda_runtime_api.h>
#include <string>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/device/kernel_image.h"

namespace dsv4rt::cuda {
namespace {

__global__ void probe_kernel() {}

}  // namespace

const char* compiled_architectures() {
  return DSV4RT_CUDA_ARCHITECTURES;
}

Status check_kernel_image(int device) {
  DSV4RT_CUDA_TRY(cudaSetDevice(device));
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, probe_kernel);
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
      error == cudaErrorUnsupportedPtxVersion) {
    static_cast<void>(cudaGetLastError());
    return {StatusCode::kUnsupported, "device " + std::to_string(device) + ": " + cudaGetErrorString(error) +
                                          "; this build holds code for " + compiled_architectures()};
  }
  return DSV4RT_CUDA_STATUS(error);
}

}  // namespace dsv4rt::cuda
