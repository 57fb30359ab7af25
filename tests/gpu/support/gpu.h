// What GPU tests share: the one CUDA backend of the process, and arrays in its memory.
//
// Without a usable GPU a test ends as GTEST_SKIP with the reason; ctest then reports it as not run.
#pragma once

#include <memory>

#include <gtest/gtest.h>

#include "backend/backend.h"
#include "backend/cuda/cuda_backend.h"
#include "checkpoint/host_linear.h"
#include "support/backend_array.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {

// Backend of device 0, made at first use; null without a usable GPU.
inline Backend* gpu_backend() {
  static const Result<std::unique_ptr<Backend>> backend = create_cuda_backend({.device = 0});
  return backend.ok() ? backend->get() : nullptr;
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu_backend() == nullptr) GTEST_SKIP() << "no usable CUDA device";
  }
  [[nodiscard]] static Backend& gpu() { return *gpu_backend(); }
};

inline std::unique_ptr<PackedLinear> pack(Backend& backend, const HostLinear& host) {
  auto packed = backend.pack_linear(host);
  EXPECT_OK(packed);
  return packed.ok() ? std::move(packed).value() : nullptr;
}

template <class T>
using DeviceArray = BackendArray<T>;

}  // namespace dsv4rt::test
