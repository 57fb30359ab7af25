// Makes the sources of CPU tests run on a GPU.
#include <cuda_runtime_api.h>

#include <gtest/gtest.h>

#include "backend/cuda/cuda_backend.h"
#include "support/test_backend.h"

namespace dsv4rt::test {

constinit const std::string_view kTestBackend = "cuda";

Result<std::unique_ptr<Backend>> create_test_backend() {
  return with_test_scratch(create_cuda_backend({.device = 0}), kTestScratchBytes);
}

void settle_test_stream(void* stream) {
  EXPECT_EQ(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), cudaSuccess);
}

}  // namespace dsv4rt::test
