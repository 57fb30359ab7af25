// The device of gpu_backend() for tests that make the CUDA backend's operations themselves.
#pragma once

#include <memory>

#include "backend/cuda/device/cuda_device.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {

// Null, with a failed expectation, where the driver does not describe it.
inline std::unique_ptr<const cuda::CudaDevice> describe_gpu() {
  auto device = cuda::CudaDevice::create(0);
  EXPECT_OK(device);
  return device.ok() ? std::move(device).value() : nullptr;
}

}  // namespace dsv4rt::test
