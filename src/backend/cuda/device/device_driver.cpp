#include "backend/cuda/device/device_driver.h"

namespace dsv4rt::cuda {
namespace {

class RuntimeDriver final : public DeviceDriver {
 public:
  cudaError_t get_device(int& ordinal) override { return cudaGetDevice(&ordinal); }
  cudaError_t set_device(int ordinal) override { return cudaSetDevice(ordinal); }
  cudaError_t attribute(int ordinal, cudaDeviceAttr attribute, int& value) override {
    return cudaDeviceGetAttribute(&value, attribute, ordinal);
  }
  cudaError_t kernel_attributes(const void* kernel, cudaFuncAttributes& attributes) override {
    return cudaFuncGetAttributes(&attributes, kernel);
  }
  cudaError_t allow_shared_bytes(const void* kernel, int dynamic_bytes) override {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic_bytes);
  }
  cudaError_t active_clusters(const void* kernel, const cudaLaunchConfig_t& config, int& clusters) override {
    return cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  }
};

RuntimeDriver the_runtime;

}  // namespace

DeviceDriver& runtime_driver() noexcept {
  return the_runtime;
}

}  // namespace dsv4rt::cuda
