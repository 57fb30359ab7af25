// Devices with given attributes in place of a driver, so that tests of what depends on a device need none.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/kernel_image.h"

namespace dsv4rt::test {

struct FakeDevice {
  int compute_major = 9;
  int compute_minor = 0;
  int multiprocessors = 132;
  int block_shared_bytes = 232448;
  int sm_shared_bytes = 233472;
  int reserved_shared_bytes = 1024;
  bool sm90a_code = true;  // whether the build has it for this device
  // Clusters of so many blocks that run at once; about as on an H200, whose multiprocessors come in groups.
  std::function<int(int blocks)> clusters = [](int blocks) {
    return blocks == 1 ? 132 : blocks == 2 ? 66 : blocks == 4 ? 30 : blocks == 8 ? 14 : 0;
  };
  cudaError_t set_error = cudaSuccess;       // what set_device answers
  cudaError_t kernel_error = cudaSuccess;    // what kernel_attributes answers
  cudaError_t allow_error = cudaSuccess;     // what allow_shared_bytes answers
  cudaError_t clusters_error = cudaSuccess;  // what active_clusters answers
};

class FakeDeviceDriver final : public cuda::DeviceDriver {
 public:
  explicit FakeDeviceDriver(std::vector<FakeDevice> devices) : devices_(std::move(devices)) {}

  cudaError_t get_device(int& ordinal) override {
    ++gets;
    ordinal = current;
    return get_error;
  }
  cudaError_t set_device(int ordinal) override {
    ++sets;
    if (ordinal < 0 || ordinal >= static_cast<int>(devices_.size())) return cudaErrorInvalidDevice;
    if (device(ordinal).set_error != cudaSuccess) return device(ordinal).set_error;
    current = ordinal;
    return cudaSuccess;
  }
  cudaError_t attribute(int ordinal, cudaDeviceAttr attribute, int& value) override {
    ++attribute_calls;
    if (ordinal < 0 || ordinal >= static_cast<int>(devices_.size())) return cudaErrorInvalidDevice;
    const FakeDevice& asked = device(ordinal);
    switch (attribute) {
      case cudaDevAttrComputeCapabilityMajor:
        value = asked.compute_major;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        value = asked.compute_minor;
        return cudaSuccess;
      case cudaDevAttrMultiProcessorCount:
        value = asked.multiprocessors;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        value = asked.block_shared_bytes;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        value = asked.sm_shared_bytes;
        return cudaSuccess;
      case cudaDevAttrReservedSharedMemoryPerBlock:
        value = asked.reserved_shared_bytes;
        return cudaSuccess;
      default:
        return cudaErrorInvalidValue;
    }
  }
  cudaError_t kernel_attributes(const void* kernel, cudaFuncAttributes& attributes) override {
    const FakeDevice& asked = device(current);
    if (kernel != cuda::sm90a_probe()) return cudaErrorInvalidDeviceFunction;
    attributes.maxThreadsPerBlock = asked.sm90a_code ? cuda::kSm90aProbeThreads : cuda::kProbeThreads;
    return asked.kernel_error;
  }
  cudaError_t allow_shared_bytes(const void* kernel, int dynamic_bytes) override {
    const cudaError_t error = device(current).allow_error;
    ++allow_calls;
    if (error == cudaSuccess) allowed[{current, kernel}] = dynamic_bytes;
    return error;
  }
  cudaError_t active_clusters(const void* kernel, const cudaLaunchConfig_t& config, int& clusters) override {
    ++cluster_calls;
    const FakeDevice& asked = device(current);
    if (asked.clusters_error != cudaSuccess) return asked.clusters_error;
    const auto found = allowed.find({current, kernel});
    if (found == allowed.end() || static_cast<std::size_t>(found->second) < config.dynamicSmemBytes) {
      return cudaErrorInvalidValue;  // a kernel that was not prepared
    }
    clusters = asked.clusters(static_cast<int>(config.attrs[0].val.clusterDim.x));
    return cudaSuccess;
  }

  FakeDevice& device(int ordinal) { return devices_[static_cast<std::size_t>(ordinal)]; }

  int current = 0;
  cudaError_t get_error = cudaSuccess;
  int gets = 0;
  int sets = 0;
  int attribute_calls = 0;
  int allow_calls = 0;
  int cluster_calls = 0;
  std::map<std::pair<int, const void*>, int> allowed;  // shared memory of a kernel on a device

 private:
  std::vector<FakeDevice> devices_;
};

}  // namespace dsv4rt::test
