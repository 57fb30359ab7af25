#include <cuda_runtime_api.h>
#include <string>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/device/current_device.h"
#include "backend/cuda/device/kernel_image.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int kThreadsOfThisCode = kSm90aProbeThreads;
#else
constexpr int kThreadsOfThisCode = kProbeThreads;
#endif

__global__ __launch_bounds__(kThreadsOfThisCode) void probe_kernel() {}

}  // namespace

const char* compiled_architectures() {
  return DSV4RT_CUDA_ARCHITECTURES;
}

const void* sm90a_probe() noexcept {
  return reinterpret_cast<const void*>(probe_kernel);
}

Result<bool> runs_sm90a_code(DeviceDriver& driver) {
  cudaFuncAttributes attributes{};
  DSV4RT_CUDA_TRY(driver.kernel_attributes(sm90a_probe(), attributes));
  const int threads = attributes.maxThreadsPerBlock;
  if (threads == kSm90aProbeThreads || threads == kProbeThreads) return threads == kSm90aProbeThreads;
  return Status{StatusCode::kInternal, "the probe of the device's code has blocks of up to " + std::to_string(threads) +
                                           " threads; it was compiled for " + std::to_string(kSm90aProbeThreads) +
                                           " or " + std::to_string(kProbeThreads)};
}

Status check_kernel_image(int device) {
  const CurrentDevice current(device, runtime_driver());
  DSV4RT_RETURN_IF_ERROR(current.status());
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
