// What GPU tests share: the one CUDA backend of the process, and arrays in its memory.
//
// Without a usable GPU a test ends as GTEST_SKIP with the reason; ctest then reports it as not run.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/backend.h"
#include "backend/cuda/cuda_backend.h"
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

// A copy of host values in backend memory.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Backend& backend, std::span<const T> values) : backend_(&backend), count_(values.size()) {
    auto buffer = backend.allocate(values.size_bytes(), "test array");
    EXPECT_OK(buffer);
    memory_ = std::move(buffer).value();
    EXPECT_OK(backend.upload(memory_.data(), values.data(), values.size_bytes()));
  }
  DeviceArray(Backend& backend, const std::vector<T>& values) : DeviceArray(backend, std::span<const T>(values)) {}

  [[nodiscard]] T* data() const { return memory_.template as<T>(); }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] std::vector<T> download() const {
    std::vector<T> values(count_);
    EXPECT_OK(backend_->download(values.data(), memory_.data(), count_ * sizeof(T)));
    return values;
  }

 private:
  Backend* backend_;
  std::size_t count_;
  Buffer memory_;
};

}  // namespace dsv4rt::test
