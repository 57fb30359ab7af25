// main() of test programs that run a whole engine on the GPU: without one there is nothing to test.
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

#include "backend/cuda/cuda_backend.h"
#include "gpu/support/child_process.h"
#include "gpu/support/require_gpu.h"
#include "support/test_backend.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (std::getenv(dsv4rt::test::kChildVariable) != nullptr) return RUN_ALL_TESTS();
  const auto backend = dsv4rt::create_cuda_backend({.device = 0});
  if (backend.ok()) return RUN_ALL_TESTS();
  if (!dsv4rt::test::may_be_left_out(backend.status(), 1)) {
    std::printf("FAILED: %s\n", backend.status().to_string().c_str());
    return 1;
  }
  std::printf("%s\n", dsv4rt::test::not_run(1, backend.status().message()).c_str());
  return 0;
}
