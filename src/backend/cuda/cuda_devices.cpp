#include "backend/cuda/cuda_devices.h"

#include <cuda_runtime_api.h>

#include "backend/cuda/device/cublaslt_library.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/device/current_device.h"
#include "backend/cuda/device/kernel_image.h"
#include "backend/cuda/kernels/linear/cublaslt/cublaslt_linear.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

// Kernels use instructions of Hopper and later.
constexpr int kMinComputeMajor = 9;

// 13000 -> "13.0", as CUDA numbers its versions.
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Status inspect_device(CudaDeviceReport& device) {
  cudaDeviceProp properties{};
  DSV4RT_CUDA_TRY(cudaGetDeviceProperties(&properties, device.ordinal));
  device.name = properties.name;
  device.compute_major = properties.major;
  device.compute_minor = properties.minor;
  device.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  device.multiprocessors = properties.multiProcessorCount;
  device.l2_bytes = properties.l2CacheSize;
  DSV4RT_RETURN_IF_ERROR(check_compute_capability(device.name, device.compute_major, device.compute_minor));
  DSV4RT_RETURN_IF_ERROR(cuda::check_kernel_image(device.ordinal));
  const cuda::CurrentDevice current(device.ordinal, cuda::runtime_driver());
  DSV4RT_RETURN_IF_ERROR(current.status());
  DSV4RT_ASSIGN_OR_RETURN(device.has_sm90a, cuda::runs_sm90a_code(cuda::runtime_driver()));
  std::size_t free = 0;
  std::size_t total = 0;
  DSV4RT_CUDA_TRY(cudaMemGetInfo(&free, &total));
  device.free_bytes = static_cast<std::int64_t>(free);
  const auto library = cuda::CublasLtLinear::create(device.compute_major);
  device.has_nvfp4_products = library.ok() && *library != nullptr;
  return {};
}

}  // namespace

Status check_compute_capability(const std::string& name, int major, int minor) {
  if (major >= kMinComputeMajor) return {};
  return {StatusCode::kUnsupported, name + " has compute capability " + std::to_string(major) + "." +
                                        std::to_string(minor) + "; " + std::to_string(kMinComputeMajor) +
                                        ".0 or later is needed"};
}

CudaSystem inspect_cuda() {
  CudaSystem system;
  system.architectures = cuda::compiled_architectures();
  system.toolkit_version = version_text(CUDART_VERSION);
  if (const Result<cuda::CublasLt> lt = cuda::load_cublaslt(); lt.ok()) {
    const std::size_t version = lt->cublasLtGetVersion();  // 130100: 13.1.0
    system.cublaslt_version = std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
                              std::to_string(version % 100);
  } else {
    system.cublaslt_found = lt.status();
  }
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) system.driver_version = version_text(driver);
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    system.devices_found = {StatusCode::kUnsupported,
                            std::string("no usable CUDA device: ") + cudaGetErrorString(error)};
    return system;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CudaDeviceReport device;
    device.ordinal = ordinal;
    device.usable = inspect_device(device);
    system.devices.push_back(std::move(device));
  }
  return system;
}

}  // namespace dsv4rt
