// main() of test programs that run a whole engine on the GPU: without one there is nothing to test.
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "gpu/support/child_process.h"
#include "support/test_backend.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (std::getenv(dsv4rt::test::kChildVariable) != nullptr) return RUN_ALL_TESTS();
  const auto backend = dsv4rt::create_cuda_backend({.device = 0});
  if (!backend.ok() && backend.status().code() == dsv4rt::StatusCode::kUnsupported) {
    // ctest reports the test as skipped when it reads this (tests/gpu/CMakeLists.txt).
    std::printf("no usable CUDA device: %s\n", backend.status().message().c_str());
    return 0;
  }
  return RUN_ALL_TESTS();
}
