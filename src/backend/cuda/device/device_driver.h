// The questions and settings of devices that this library puts to the CUDA runtime. Tests without a GPU stand in for
// it with devices of their own.
#pragma once

#include <cuda_runtime_api.h>

namespace dsv4rt::cuda {

class DeviceDriver {
 public:
  virtual ~DeviceDriver() = default;

  // These concern the calling thread.
  virtual cudaError_t get_device(int& ordinal) = 0;
  virtual cudaError_t set_device(int ordinal) = 0;
  virtual cudaError_t attribute(int ordinal, cudaDeviceAttr attribute, int& value) = 0;

  // These concern a kernel on the calling thread's current device.
  virtual cudaError_t kernel_attributes(const void* kernel, cudaFuncAttributes& attributes) = 0;
  virtual cudaError_t allow_shared_bytes(const void* kernel, int dynamic_bytes) = 0;
  virtual cudaError_t active_clusters(const void* kernel, const cudaLaunchConfig_t& config, int& clusters) = 0;
};

// The CUDA runtime itself; it has no state here.
DeviceDriver& runtime_driver() noexcept;

}  // namespace dsv4rt::cuda
