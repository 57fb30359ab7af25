// What GPU tests share: the one CUDA backend of the process, and arrays in its memory.
//
// Without a usable GPU a test is reported as not run, or fails where a GPU is required (require_gpu.h).
#pragma once

#include <memory>

#include <gtest/gtest.h>

#include "backend/backend.h"
#include "backend/cuda/cuda_backend.h"
#include "checkpoint/host_linear.h"
#include "gpu/support/require_gpu.h"
#include "support/backend_array.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {

// Backend of device 0, made at first use, or why there is none.
inline const Result<std::unique_ptr<Backend>>& gpu_backend() {
  static const Result<std::unique_ptr<Backend>> backend = create_cuda_backend({.device = 0});
  return backend;
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status& found = gpu_backend().status();
    if (found.ok()) return;
    if (may_be_left_out(found, 1)) GTEST_SKIP() << not_run(1, found.message());
    FAIL() << found.to_string();
  }
  [[nodiscard]] static Backend& gpu() { return **gpu_backend(); }
};

inline std::unique_ptr<PackedLinear> pack(Backend& backend, const HostLinear& host) {
  auto packed = backend.pack_linear(host);
  EXPECT_OK(packed);
  return packed.ok() ? std::move(packed).value() : nullptr;
}

template <class T>
using DeviceArray = BackendArray<T>;

}  // namespace dsv4rt::test
